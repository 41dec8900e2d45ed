"""The constants of `data/calibration.toml`: one section for each part of the model that needs some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

from ipu_model.data_files import Fact, fact, read_data
from ipu_model.errors import Error

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


def require_finite(constants: Any) -> None:
    """Refuse constants that no machine has.

    Raises:
        Error: a negative, infinite or undefined number.
    """
    for item in fields(constants):
        value = getattr(constants, item.name)
        if not math.isfinite(value) or value < 0:
            raise Error(f"The constant {item.name} cannot be {value!r}: it must be finite and not negative.")
