"""`profile` and `profile_module`: what the IPU Model says about a program, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error
from ipu_model.host_work import HostWork

if TYPE_CHECKING:
    from ipu_model.hardware import System
    from ipu_model.profiling.data import Profile
    from ipu_model.program import Program

# The engine knows executors and options by these methods only: it must not import the package that defines them.
_OF_EXECUTOR = "_modelled_profile"
_OF_OPTIONS = "_modelled_program"


def profile(executor: Any, *, host: HostWork | None = None, machine: str | System | None = None) -> Profile:
    """Return the profile of a compiled `poptorch` executor; one compiled for an offline target will do.

    `host` says what the program's own loader and loop cost (default: nothing). `machine` is a name such as
    "POD16" or "Bow" (see `ipu_model.hardware`), or a `System` (default: the program's own machine, chosen by
    `useOfflineIpuTarget`, `POPTORCH_IPU_MODEL_VERSION` and `IPU_MODEL_MACHINE`, else the smallest GC200 system
    with enough IPUs). The executor remembers its profiles until `destroy()`.

    Raises:
        Error: not an executor, not compiled, or a machine that is too small or does not exist.
    """
    if not callable(getattr(type(executor), _OF_EXECUTOR, None)):
        raise Error(
            f"ipu_model.profile takes what poptorch.trainingModel or poptorch.inferenceModel returned, not "
            f"{_kind(executor)}. For a plain module there is ipu_model.profile_module(module, inputs, options)."
        )
    check_host(host)
    found: Profile = getattr(executor, _OF_EXECUTOR)(host, machine)
    return found


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
    """Return the profile of the program that wrapping `model` with `poptorch.Options` would make.

    Nothing is wrapped, uploaded or computed: `model` and `options` stay as they are. `inputs` are a tensor, a
    tuple or list of forward's arguments, or a dict of keyword arguments, as one call takes them (device iterations
    x accumulation x replicas / input group x micro-batch rows), or one micro-batch of them with `micro_batch`. Only
    their shapes and types count: tensors on the `meta` device and expanded ones take no memory. `training` is taken
    to be true if there is an `optimizer`. `host` and `machine` are as in `profile`.

    All replicas that the options ask for count, also more than the 64 IPUs of one process: they may be spread over
    processes. One replica has to fit into a process.

    Raises:
        Error: what PopTorch refuses when it wraps and compiles, options of another package, or a machine that is
            too small or does not exist.
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
    """
    check_host(host)
    from ipu_model.profiling.build import profile_program

    program = program_of_module(
        model, inputs, options, optimizer=optimizer, training=training, machine=machine, micro_batch=micro_batch
    )
    return profile_program(program, host or HostWork())


def program_of_module(
    model: Any,
    inputs: Any,
    options: Any,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
) -> Program:
    """Return the program that `profile_module` profiles, for `what_if`, `sweep` and `advise`.

    Raises:
        Error, AssertionError: as `profile_module`.
    """
    if not callable(getattr(type(options), _OF_OPTIONS, None)):
        raise Error(f"ipu_model.profile_module takes poptorch.Options() as options, not {_kind(options)}.")
    program: Program = getattr(options, _OF_OPTIONS)(
        model, inputs, optimizer=optimizer, training=training, machine=machine, micro_batch=micro_batch
    )
    return program


def check_host(host: object) -> None:
    """Refuse what is no description of the host's work.

    Raises:
        Error: neither `None` nor a `HostWork`.
    """
    if host is not None and not isinstance(host, HostWork):
        raise Error(f"host takes an ipu_model.HostWork, not {_kind(host)}: what the program's loader and loop cost.")


def _kind(thing: object) -> str:
    return f"a {type(thing).__name__}" if thing is not None else "None"
