"""`profile` and `profile_module`: model a program on IPUs with one call."""

from __future__ import annotations

from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.options import with_options
from ipu_model.explore.program_source import host_work_of
from ipu_model.front_ends import kind_of, program_behind, program_of_module
from ipu_model.predict import profile_lately, profile_program
from ipu_model.predict.hardware import System, system_with_room
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile


def profile(executor: Any, *, host: HostWork | None = None, machine: str | System | None = None) -> Profile:
    """Return the profile of a compiled `poptorch` executor, which may be compiled for an offline target.

    `host` gives the costs of the program's own loader and loop (default: none, or those of a `Profile`). `machine` is
    a name such as "POD16" or "Bow" (see `ipu_model.predict.hardware`), or a `System` (default: the program's own
    machine, chosen by `useOfflineIpuTarget`, `POPTORCH_IPU_MODEL_VERSION` and `IPU_MODEL_MACHINE`, else the smallest
    GC200 system with enough IPUs). The last few profiles of an executor are remembered until `destroy()`.

    Raises:
        Error: not an executor, not compiled, or a machine that is too small or does not exist.
    """
    check_host(host)
    program = program_behind(executor)
    if machine is not None:
        occupied = program.reserved_ipus or program.ipus_per_replica * program.replicas
        program = with_options(program, machine=system_with_room(machine, occupied, "the argument machine"))
    return profile_lately(program, host_work_of(executor, host))


def profile_module(
    model: Any,
    inputs: Any,
    options: Any,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    host: HostWork | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
) -> Profile:
    """Return the profile of the program that you would get by wrapping `model` with `options`.

    Nothing is wrapped, uploaded or computed: `model` and `options` stay as they are. `inputs` are a tensor, a
    tuple or list of forward's arguments, or a dict of keyword arguments, as one call takes them (device iterations
    x accumulation x replicas / input group x micro-batch rows), or one micro-batch of them with `micro_batch`. Only
    their shapes and types count: tensors on the `meta` device and expanded ones take no memory. `training` is taken
    to be true if there is an `optimizer`. `host` and `machine` are as in `profile`.

    All replicas in the options count, even beyond the 64 IPUs of one process: they may be spread over several
    processes. One replica must fit into one process.

    Raises:
        Error: what PopTorch refuses when it wraps and compiles, options of another package, or a machine that is
            too small or does not exist.
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
    """
    check_host(host)
    program = program_of_module(
        options, model, inputs, optimizer=optimizer, training=training, machine=machine, micro_batch=micro_batch
    )
    return profile_program(program, host)


def check_host(host: object) -> None:
    """Refuse a `host` of the wrong type.

    Raises:
        Error: it is neither `None` nor a `HostWork`.
    """
    if host is not None and not isinstance(host, HostWork):
        raise Error(f"host takes an ipu_model.HostWork, not {kind_of(host)}: what the program's loader and loop cost.")
