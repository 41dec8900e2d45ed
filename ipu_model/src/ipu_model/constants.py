"""The constants of `data/calibration.toml`: one section for each part of the model that needs some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TypeVar

from ipu_model.data_files import Fact, fact, read_data
from ipu_model.errors import Error
from ipu_model.predict.calibration import Calibration, calibrated

_FILE = "calibration.toml"
T = TypeVar("T")
_others: ContextVar[Mapping[str, float] | None] = ContextVar(
    "constants that stand in for the calibrated ones", default=None
)


@lru_cache(maxsize=1)
def constant_facts() -> Mapping[str, Mapping[str, Fact]]:
    """Return every constant by section and name, with unit, source and confidence."""
    return {
        section: {name: fact(entry, f"{_FILE}, {section}.{name}") for name, entry in entries.items()}
        for section, entries in read_data(_FILE).items()
    }


def fitted() -> tuple[str, ...]:
    """Return "section.name" of the constants that were fitted to published rows."""
    return tuple(
        f"{section}.{name}"
        for section, facts in constant_facts().items()
        for name, found in facts.items()
        if found.confidence == "fitted"
    )


def values(section: str, kind: type[T]) -> T:
    """Return the dataclass `kind`, filled with the constants of a section; each field is named like its entry."""
    others = _others.get()
    return _filled(section, kind, others or {})


def _filled(section: str, kind: type[T], others: Mapping[str, float]) -> T:
    facts = constant_facts()[section]
    return kind(**{name: others.get(f"{section}.{name}", found.value) for name, found in facts.items()})


def calibration_in_use() -> Calibration:
    """Return all constants, with the other numbers of `constants_as`."""
    return calibrated().with_values(_others.get() or {})


@contextmanager
def constants_as(others: Mapping[str, float]) -> Iterator[None]:
    """Let `values` use other numbers, by "section.name", inside a `with`: to see what they do.

    Raises:
        Error: there is no such constant.
    """
    known = {f"{section}.{name}" for section, facts in constant_facts().items() for name in facts}
    unknown = sorted(set(others) - known)
    if unknown:
        raise Error(f"There is no constant {', '.join(unknown)} in {_FILE}.")
    token = _others.set(dict(others))
    try:
        yield
    finally:
        _others.reset(token)


@dataclass(frozen=True)
class Section:
    """The base of dataclasses that hold one section of `data/calibration.toml`, a field for each entry.

    Raises:
        Error: a negative, infinite or undefined number, which no machine has.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not math.isfinite(value) or value < 0:
                raise Error(f"The constant {item.name} cannot be {value!r}: it must be finite and not negative.")
