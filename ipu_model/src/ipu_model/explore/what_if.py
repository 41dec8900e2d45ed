"""`what_if` and `sweep`: a program with other options, without compiling it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.options import option_named, with_options
from ipu_model.explore.profiling import check_host
from ipu_model.explore.program_source import host_work_of, source_of
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep; if the setting is impossible, `profile` is `None` and `refused` gives the reason."""

    value: Any
    profile: Profile | None
    refused: str = ""


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
    """Return the profile of a program with other options, such as `gradient_accumulation=16`.

    `thing` is a compiled `poptorch.trainingModel` or `poptorch.inferenceModel`, also one whose program did not fit, a
    `Profile`, or a plain module with the `inputs`, `options`, `optimizer`, `training` and `micro_batch` of
    `ipu_model.profile_module`. `host` is by default the work that a `Profile` was modelled with. `changes` are named as
    in `ipu_model.explore.options.OPTIONS`; without a module, `optimizer` is one of them: the `OptimiserSpec` of another
    optimizer. Sizes of tensors cannot change: they need another compilation.

    Raises:
        Error: unknown options, values they cannot have, or a program that is too large for its machine.
    """
    check_host(host)
    program = _changed(thing, inputs, options, optimizer, training, micro_batch, changes)
    return profile_program(program, host_work_of(thing, host))


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

    The arguments are those of `what_if`.

    Raises:
        Error: an unknown option. An invalid value does not raise: it becomes a point without a profile.
    """
    check_host(host)
    swept = option_named(option)
    program = _changed(thing, inputs, options, optimizer, training, micro_batch, changes)
    host = host_work_of(thing, host)
    points = []
    for value in values:
        try:
            profile = profile_program(with_options(program, **{swept.name: value}), host)
        except Error as problem:
            points.append(SweepPoint(value, None, problem.message))
        else:
            points.append(SweepPoint(value, profile))
    return tuple(points)


def _changed(
    thing: Any, inputs: Any, options: Any, optimizer: Any, training: bool | None, micro_batch: bool,
    changes: Mapping[str, Any],
) -> Program:  # fmt: skip
    """Return the program of a thing with changes; a module has its own optimizer, anything else may get another."""
    if inputs is None and options is None and optimizer is not None:
        changes, optimizer = {**changes, "optimizer": optimizer}, None
    source = source_of(thing, inputs, options, optimizer=optimizer, training=training, micro_batch=micro_batch)
    return with_options(source.program, **changes)
