"""The constants that formulas need and no document gives: read from `data/calibration.toml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from ipu_model.data_files import Fact, fact, read_data
from ipu_model.errors import Error


@dataclass(frozen=True)
class Constants:
    """One attribute for each entry of the section `cost` of `data/calibration.toml`, which explains them.

    Raises:
        Error: a negative or infinite number.
    """

    sync_cycles: float
    exchange_fixed_cycles: float
    layout_copy_cycles_per_byte: float
    layout_copy_fixed_cycles: float
    weight_transpose_cycles_per_byte: float
    least_bytes_per_tile: float
    optimiser_fixed_cycles: float

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not math.isfinite(value) or value < 0:
                raise Error(f"The constant {item.name} cannot be {value!r}: it must be finite and not negative.")


@lru_cache(maxsize=1)
def constant_facts() -> Mapping[str, Fact]:
    """Return the constants with unit, source and confidence ("fitted" for those found on published rows)."""
    where = "calibration.toml"
    return {name: fact(entry, f"{where}, {name}") for name, entry in read_data(where)["cost"].items()}


@lru_cache(maxsize=1)
def calibrated() -> Constants:
    """Return the constants of `data/calibration.toml`."""
    return Constants(**{name: found.value for name, found in constant_facts().items()})


def fitted() -> tuple[str, ...]:
    """Return the names of the constants that were fitted to published rows."""
    return tuple(name for name, found in constant_facts().items() if found.confidence == "fitted")
