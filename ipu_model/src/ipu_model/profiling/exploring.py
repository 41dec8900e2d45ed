"""`what_if`, `sweep` and `advise`: a compiled program with other options, without compiling it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ipu_model.advice import Advice
from ipu_model.adviser import advise as advise_on
from ipu_model.entry_points import program_of
from ipu_model.errors import Error
from ipu_model.host_work import HostWork
from ipu_model.knobs import KNOBS, changed
from ipu_model.profiling.build import profile_program
from ipu_model.profiling.data import Profile
from ipu_model.profiling.entry import check_host


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep; `profile` is `None` where the setting is impossible, for the reason in `refused`."""

    value: Any
    profile: Profile | None
    refused: str = ""


def what_if(executor: Any, *, host: HostWork | None = None, **changes: Any) -> Profile:
    """Return the profile of a compiled program with other options, such as `gradient_accumulation=16`.

    `executor` is what `poptorch.trainingModel` or `poptorch.inferenceModel` returned, compiled; `changes` are
    named as in `ipu_model.knobs.KNOBS`. Sizes of tensors cannot change: they need another compilation.

    Raises:
        Error: unknown options, values they cannot have, or a program that is too large for its machine.
    """
    check_host(host)
    return profile_program(changed(program_of(executor), **changes), host)


def sweep(
    executor: Any, knob: str, values: Iterable[Any], *, host: HostWork | None = None, **changes: Any
) -> tuple[SweepPoint, ...]:
    """Return one profile for each value of an option, with `changes` made to all of them.

    Raises:
        Error: an unknown option. Values that the program cannot have become points without a profile.
    """
    check_host(host)
    if knob not in KNOBS:
        changed(program_of(executor), **{str(knob): None})
    program = changed(program_of(executor), **changes)
    points = []
    for value in values:
        try:
            profile = profile_program(changed(program, **{knob: value}), host)
        except Error as problem:
            points.append(SweepPoint(value, None, problem.message))
        else:
            points.append(SweepPoint(value, profile))
    return tuple(points)


def advise(executor: Any, *, host: HostWork | None = None) -> tuple[Advice, ...]:
    """Return the changes of a compiled program that are worth trying, the most useful first.

    Raises:
        Error: not a compiled executor.
    """
    check_host(host)
    return advise_on(program_of(executor), host)
