"""Published rows beside what the model says about them, today and when that was last written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

import msgspec

from ipu_model.errors import Error
from ipu_model.predict.profile import Verdict, close_band
from published.predictions import Predictions
from published.rows import Row, VerdictRow, published

RECORD = Path(__file__).with_name("record.json")


class Outcome(str, Enum):
    """How a modelled verdict compares with what happened, best first."""

    RIGHT = "right"
    CLOSE = "too close to call"
    WRONG = "wrong"


class Record(msgspec.Struct, frozen=True):
    """The signed error of each number, and the share of a tile and outcome of each verdict, by the row's id.

    `left_out` is the error of each fitted row that an error band rests on, had the constants been fitted without it.
    """

    errors: Mapping[str, float]
    left_out: Mapping[str, float]
    shares: Mapping[str, float]
    outcomes: Mapping[str, Outcome]


@lru_cache(maxsize=1)
def recorded() -> Record:
    """Return the record that `python -m ipu_model validate --record` wrote."""
    return msgspec.json.decode(RECORD.read_bytes(), type=Record)


@dataclass(frozen=True)
class Compared:
    """One row with its modelled value, or with that of its program with another `choice` of what is not published."""

    row: Row
    modelled: float
    choice: str = ""

    @property
    def error(self) -> float:
        """Signed and relative."""
        return self.modelled / self.row.value - 1.0

    @property
    def as_wanted(self) -> bool:
        return abs(self.error) <= self.row.wanted


@dataclass(frozen=True)
class ComparedVerdict:
    """One outcome with the modelled verdict; `share` is what the fullest tile holds, relative to its memory."""

    row: VerdictRow
    share: float
    verdict: Verdict

    @property
    def outcome(self) -> Outcome:
        if self.verdict is Verdict.CLOSE:
            return Outcome.CLOSE
        return Outcome.RIGHT if (self.verdict is Verdict.FITS) == self.row.ran else Outcome.WRONG


@dataclass(frozen=True)
class Comparison:
    """Numbers and verdicts, each compared with the model, and programs with other choices of what is not published."""

    numbers: tuple[Compared, ...]
    verdicts: tuple[ComparedVerdict, ...]
    choices: tuple[Compared, ...] = ()


def compare_rows(beginnings: Iterable[str] = (), *, long: bool = False) -> Comparison:
    """Compare every published row (or those whose id begins with one of `beginnings`) with the model.

    Without `beginnings`, rows whose programs take long to rebuild are taken from the record unless `long`.
    """
    prefixes = tuple(beginnings) or ("",)
    rows = [row for row in published().rows if row.id.startswith(prefixes)]
    verdict_rows = [row for row in published().verdicts if row.id.startswith(prefixes)]
    if not rows and not verdict_rows:
        ids = [*(row.id for row in published().rows), *(row.id for row in published().verdicts)]
        groups = sorted({row_id.split(".")[0] for row_id in ids})
        raise Error(f"No published row begins with {' or '.join(prefixes)}. Groups of rows: {', '.join(groups)}.")
    predictions, from_record = Predictions(), not long and prefixes == ("",)

    def number(row: Row) -> Compared:
        if row.long and from_record:
            return Compared(row, row.value * (1 + recorded().errors[row.id]))
        return Compared(row, predictions.value(row))

    def verdict(row: VerdictRow) -> ComparedVerdict:
        if row.long and from_record:
            share = recorded().shares[row.id]
            return ComparedVerdict(row, share, close_band().verdict(share))
        memory = predictions.memory(row)
        return ComparedVerdict(row, memory.share, memory.verdict)

    choices = tuple(
        Compared(row, predictions.value(row, **choice.arguments), choice.what)
        for choice in published().choices
        for row in rows
        if row.id == choice.row
    )
    return Comparison(tuple(map(number, rows)), tuple(map(verdict, verdict_rows)), choices)
