"""Model a program: as it is, from a plain module, with other options, and for each value of an option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ipu_model.errors import Error, kind_of
from ipu_model.explore.options import option_named, with_options
from ipu_model.front_ends import ModuleChanges, captures_of, program_behind, program_of_module
from ipu_model.predict import profile_lately, profile_program
from ipu_model.predict.hardware import System, system_with_room
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program


def profile(executor: Any, *, host: HostWork | None = None, machine: str | System | None = None) -> Profile:
    """Return the profile of a compiled `poptorch` executor, which may be compiled for an offline target.

    `host` gives the costs of the program's own loader and loop (default: none, or those of a `Profile`). `machine` is
    a name such as "POD16" or "Bow" (see `ipu_model.predict.hardware`), or a `System` (default: the program's own
    machine, chosen by `useOfflineIpuTarget`, `POPTORCH_IPU_MODEL_VERSION` and `IPU_MODEL_MACHINE`, else the smallest
    GC200 system with enough IPUs). The last few profiles of an executor are remembered until `destroy()`. For example::

        training_model.compile(images, labels)
        print(ipu_model.profile(training_model, machine="POD16").samples_per_second)

    Raises `Error` for what is not compiled, and for a machine that is too small or does not exist.
    """
    host = host_work_of(executor, host)
    program = program_behind(executor)
    if machine is not None:
        occupied = program.reserved_ipus or program.ipus_per_replica * program.replicas
        program = with_options(program, machine=system_with_room(machine, occupied, "the argument machine"))
    return profile_lately(program, host)


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
    processes. One replica must fit into one process. For example::

        ipu_model.profile_module(model, images[:16], poptorch.Options(), micro_batch=True).memory.max_tile_bytes

    Raises what PopTorch does when it wraps and compiles, and `Error` for options of another package or a machine that
    is too small or does not exist.
    """
    host = host_work_of(model, host)
    program = program_of_module(
        options, model, inputs, optimizer=optimizer, training=training, machine=machine, micro_batch=micro_batch
    )
    return profile_program(program, host)


def what_if(
    thing: Any,
    inputs: Any = None,
    options: Any = None,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    micro_batch: bool = False,
    host: HostWork | None = None,
    **changes: Any,
) -> Profile:
    """Return the profile of a program with other options, such as `what_if(training_model, gradient_accumulation=16)`.

    `thing` is a compiled `poptorch.trainingModel` or `poptorch.inferenceModel`, also one whose program did not fit, a
    `Profile`, or a plain module with the `inputs`, `options`, `optimizer`, `training` and `micro_batch` of
    `ipu_model.profile_module`. `host` is by default the work that a `Profile` was modelled with. `changes` are named as
    in `ipu_model.explore.options.OPTIONS`; without a module, `optimizer` is one of them: the `OptimiserSpec` of another
    optimizer. Sizes of tensors cannot change: they need another compilation. Raises `Error` for unknown options, values
    they cannot have, or a program that is too large for its machine.
    """
    host = host_work_of(thing, host)
    program = _changed(thing, inputs, options, optimizer, changes, training=training, micro_batch=micro_batch)
    return profile_program(program, host)


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep; if the setting is impossible, `profile` is `None` and `refused` gives the reason."""

    value: Any
    profile: Profile | None
    refused: str = ""


def sweep(
    thing: Any,
    option: str,
    values: Iterable[Any],
    *,
    inputs: Any = None,
    options: Any = None,
    optimizer: Any = None,
    training: bool | None = None,
    micro_batch: bool = False,
    host: HostWork | None = None,
    **changes: Any,
) -> tuple[SweepPoint, ...]:
    """Return one profile for each value of an option, with the other `changes` the same for all of them.

    The arguments are those of `what_if`: `sweep(training_model, "replicas", (1, 2, 4), device_iterations=8)`. Raises
    `Error` for an unknown option; an invalid value does not raise, it becomes a point without a profile.
    """
    host = host_work_of(thing, host)
    swept = option_named(option)
    program = _changed(thing, inputs, options, optimizer, changes, training=training, micro_batch=micro_batch)
    points = []
    for value in values:
        try:
            points.append(SweepPoint(value, profile_program(with_options(program, **{swept.name: value}), host)))
        except Error as problem:
            points.append(SweepPoint(value, None, problem.message))
    return tuple(points)


def _changed(thing: Any, inputs: Any, options: Any, optimizer: Any, changes: Mapping[str, Any], **more: Any) -> Program:
    # A module has its own optimizer, anything else may get another.
    if inputs is None and options is None and optimizer is not None:
        changes, optimizer = {**changes, "optimizer": optimizer}, None
    return with_options(source_of(thing, inputs, options, optimizer=optimizer, **more).program, **changes)


@dataclass(frozen=True)
class Source:
    """A program to explore, the host's work with it, and what captures its module again (`None`: there is none)."""

    program: Program
    host: HostWork
    again: Callable[[ModuleChanges], Program] | None = None


def source_of(thing: Any, inputs: Any = None, options: Any = None, **more: Any) -> Source:
    """Return the source for what a function of `ipu_model.explore` was given; a source stays as it is."""
    if inputs is None and options is None:
        unused = [name for name, value in more.items() if value not in (None, False)]
        if unused:
            raise Error(f"Only a plain module takes {', '.join(unused)}, together with its inputs and options.")
        if isinstance(thing, Source):
            return thing
        return Source(program_behind(thing), host_work_of(thing, None), captures_of(thing))
    if inputs is None or options is None:
        raise Error("A plain module needs both the inputs of one call and poptorch.Options().")

    def again(changes: ModuleChanges) -> Program:
        return program_of_module(options, thing, inputs, changes=changes, **more)

    return Source(program_of_module(options, thing, inputs, **more), HostWork(), again)


def host_work_of(thing: Any, host: HostWork | None) -> HostWork:
    """Return the host's work to model a thing with: `host` if it was given, else that of a profile, else none."""
    if host is None:
        return thing.host if isinstance(thing, (Profile, Source)) else HostWork()
    if not isinstance(host, HostWork):
        raise Error(f"host takes an ipu_model.HostWork, not {kind_of(host)}: what the program's loader and loop cost.")
    return host
