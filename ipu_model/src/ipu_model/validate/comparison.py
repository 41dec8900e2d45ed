"""Published rows, what was measured on hardware and by whom, beside the model and what it said when last recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ipu_model.data_files import read_data
from ipu_model.errors import Error
from ipu_model.validate.predictions import Predictions

RECORD = "validation_record.json"
TOLERANCE = 0.002
"""How much larger than recorded an error may be: what rounding and order of summation could do, and no more."""


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


@dataclass(frozen=True)
class Compared:
    """One row with its modelled value."""

    row: Row
    modelled: float

    @property
    def error(self) -> float:
        """The signed relative error, modelled against published."""
        return self.modelled / self.row.value - 1.0

    @property
    def as_wanted(self) -> bool:
        """Whether the model is as near as it is meant to be."""
        return abs(self.error) <= self.row.wanted


def compare_rows(wanted: Iterable[str] = ()) -> tuple[Compared, ...]:
    """Return every published row (or those whose id begins with one of `wanted`) with its modelled value.

    Raises:
        Error: nothing begins like that, or torchvision is missing.
    """
    prefixes = tuple(wanted)
    rows = [row for row in published_rows() if not prefixes or row.id.startswith(prefixes)]
    if not rows:
        groups = sorted({row.id.split(".")[0] for row in published_rows()})
        raise Error(f"No published row begins with {' or '.join(prefixes)}. Groups of rows: {', '.join(groups)}.")
    predictions = Predictions()
    return tuple(Compared(row, predictions[row.id]) for row in rows)


def recorded_errors() -> Mapping[str, float]:
    """Return the signed errors of the record that `python -m ipu_model validate --record` wrote."""
    text = (files("ipu_model") / "data" / RECORD).read_text(encoding="utf-8")
    found: dict[str, float] = json.loads(text)
    return found


def write_record(compared: Iterable[Compared], path: Path) -> None:
    """Write the signed errors as the new record."""
    errors = {each.row.id: round(each.error, 4) for each in compared}
    path.write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")


def grown(compared: Iterable[Compared], recorded: Mapping[str, float]) -> tuple[Compared, ...]:
    """Return the rows whose error is larger than recorded, or that the record does not know."""
    return tuple(
        each
        for each in compared
        if each.row.id not in recorded or abs(each.error) > abs(recorded[each.row.id]) + TOLERANCE
    )
