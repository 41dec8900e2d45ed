"""`what_if` and `sweep`: a compiled program with other options, without compiling it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ipu_model.entry_points import program_of
from ipu_model.errors import Error
from ipu_model.explore.options import option_named, with_options
from ipu_model.explore.profile import check_host
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep; if the setting is impossible, `profile` is `None` and `refused` gives the reason."""

    value: Any
    profile: Profile | None
    refused: str = ""


def what_if(executor: Any, *, host: HostWork | None = None, **options: Any) -> Profile:
    """Return the profile of a compiled program with other options, such as `gradient_accumulation=16`.

    `executor` is a compiled `poptorch.trainingModel` or `poptorch.inferenceModel`; `options` are named as in
    `ipu_model.explore.options.OPTIONS`. Sizes of tensors cannot change: they need another compilation.

    Raises:
        Error: unknown options, values they cannot have, or a program that is too large for its machine.
    """
    check_host(host)
    return profile_program(with_options(program_of(executor), **options), host)


def sweep(
    executor: Any, option: str, values: Iterable[Any], *, host: HostWork | None = None, **options: Any
) -> tuple[SweepPoint, ...]:
    """Return one profile for each value of an option, with the other `options` the same for all of them.

    Raises:
        Error: an unknown option. An invalid value does not raise: it becomes a point without a profile.
    """
    check_host(host)
    swept = option_named(option)
    program = with_options(program_of(executor), **options)
    points = []
    for value in values:
        try:
            profile = profile_program(with_options(program, **{swept.name: value}), host)
        except Error as problem:
            points.append(SweepPoint(value, None, problem.message))
        else:
            points.append(SweepPoint(value, profile))
    return tuple(points)
