"""The published rows: what was measured on hardware, by whom, and how near the model wants to come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ipu_model.data_files import read_data
from ipu_model.errors import Error


@dataclass(frozen=True)
class Row:
    """One published number: `value` in `unit`; `wanted` is the relative error the model is meant to keep within.

    `settles` names the constants that were fitted on this row ("section.name"): for them it is no prediction.
    """

    id: str
    what: str
    value: float
    unit: str
    source: str
    wanted: float
    settles: tuple[str, ...] = ()

    @property
    def is_fitted(self) -> bool:
        """Whether a constant was chosen so that this row is met."""
        return bool(self.settles)


@lru_cache(maxsize=1)
def published_rows() -> tuple[Row, ...]:
    """Return the rows of `data/published.toml`."""
    return tuple(_row(entry) for entry in read_data("published.toml")["row"])


def _row(entry: dict[str, Any]) -> Row:
    try:
        return msgspec.convert(entry, Row)
    except msgspec.ValidationError as problem:
        raise Error(f"published.toml: row {entry.get('id', '?')!r}: {problem}.") from problem
