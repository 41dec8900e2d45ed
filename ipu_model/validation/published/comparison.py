"""Published rows beside what the model says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from ipu_model.errors import Error
from ipu_model.predict import samples_per_second
from ipu_model.predict.profile import Verdict
from published.convolutional import efficientnet_program
from published.predictions import Build, Predictions
from published.rows import Row, VerdictRow, published
from published.transformers import vit_program

# Where the cut of a row's program into stages is not published, other cuts than that of the program itself. Stages of
# EfficientNet count as in torchvision's `features`.
_OTHER_CUTS: Mapping[str, Mapping[str, Build]] = {
    "blind.B13": {
        "2, 4, 4 and 2 layers instead of 3, 3, 3 and 3": partial(vit_program, (2, 4, 4, 2)),
        "4, 4, 2 and 2 layers": partial(vit_program, (4, 4, 2, 2)),
    },
    "blind.B15": {
        "the second IPU begins at stage 3 of the network instead of 4": partial(efficientnet_program, 3),
        "it begins at stage 5": partial(efficientnet_program, 5),
    },
}


class Outcome(str, Enum):
    """How a modelled verdict compares with what happened, best first."""

    RIGHT = "right"
    CLOSE = "too close to call"
    WRONG = "wrong"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Compared:
    """One row with its modelled value, or with that of its program with another `cut` into stages."""

    row: Row
    modelled: float
    cut: str = ""

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
    """Numbers and verdicts, each compared with the model, and other cuts of programs whose cut is not published."""

    numbers: tuple[Compared, ...]
    verdicts: tuple[ComparedVerdict, ...]
    cuts: tuple[Compared, ...] = ()


def compare_rows(beginnings: Iterable[str] = ()) -> Comparison:
    """Compare every published row (or those whose id begins with one of `beginnings`) with the model."""
    prefixes = tuple(beginnings) or ("",)
    rows = [row for row in published().rows if row.id.startswith(prefixes)]
    verdict_rows = [row for row in published().verdicts if row.id.startswith(prefixes)]
    if not rows and not verdict_rows:
        ids = [*(row.id for row in published().rows), *(row.id for row in published().verdicts)]
        groups = sorted({row_id.split(".")[0] for row_id in ids})
        raise Error(f"No published row begins with {' or '.join(prefixes)}. Groups of rows: {', '.join(groups)}.")
    predictions = Predictions()
    numbers = tuple(Compared(row, predictions.value(row.id)) for row in rows)
    memories = [(row, predictions.memory(row.id)) for row in verdict_rows]
    verdicts = tuple(ComparedVerdict(row, memory.share, memory.verdict) for row, memory in memories)
    cuts = tuple(
        Compared(row, samples_per_second(build()), cut)
        for row in rows
        for cut, build in _OTHER_CUTS.get(row.id, {}).items()
    )
    return Comparison(numbers, verdicts, cuts)
