"""Published rows beside what the model says about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.verdict import Verdict
from ipu_model.validate.cuts import OtherCut, other_cuts
from ipu_model.validate.predictions import Predictions
from ipu_model.validate.rows import Row, VerdictRow, published_rows, published_verdicts


class Outcome(str, Enum):
    """How a modelled verdict compares with what happened."""

    RIGHT = "right"
    CLOSE = "too close to call"
    WRONG = "wrong"

    def __str__(self) -> str:
        return self.value


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


@dataclass(frozen=True)
class ComparedVerdict:
    """One outcome with the modelled verdict; `share` is what the fullest tile holds, relative to its memory."""

    row: VerdictRow
    share: float
    verdict: Verdict

    @property
    def outcome(self) -> Outcome:
        """Whether the verdict is right."""
        if self.verdict is Verdict.CLOSE:
            return Outcome.CLOSE
        return Outcome.RIGHT if (self.verdict is Verdict.FITS) == self.row.ran else Outcome.WRONG


@dataclass(frozen=True)
class Comparison:
    """Numbers and verdicts, each compared with the model, and other cuts of programs whose cut is not published."""

    numbers: tuple[Compared, ...]
    verdicts: tuple[ComparedVerdict, ...]
    cuts: tuple[OtherCut, ...] = ()


def compare_rows(wanted: Iterable[str] = ()) -> Comparison:
    """Compare every published row (or those whose id begins with one of `wanted`) with the model.

    Raises:
        Error: nothing begins like that, or torchvision is missing.
    """
    prefixes = tuple(wanted)
    rows = [row for row in published_rows() if not prefixes or row.id.startswith(prefixes)]
    verdicts = [row for row in published_verdicts() if not prefixes or row.id.startswith(prefixes)]
    if not rows and not verdicts:
        ids = [*(row.id for row in published_rows()), *(row.id for row in published_verdicts())]
        groups = sorted({each.split(".")[0] for each in ids})
        raise Error(f"No published row begins with {' or '.join(prefixes)}. Groups of rows: {', '.join(groups)}.")
    predictions = Predictions()
    return Comparison(
        tuple(Compared(row, predictions.value(row.id)) for row in rows),
        tuple(_verdict(row, predictions) for row in verdicts),
        tuple(each for row in rows for each in other_cuts(row)),
    )


def _verdict(row: VerdictRow, predictions: Predictions) -> ComparedVerdict:
    memory = predictions.memory(row.id)
    return ComparedVerdict(row, memory.max_tile_bytes / memory.tile_bytes, memory.verdict)
