"""Whether a program fits into its tiles: yes, no, or too close for the model to tell."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from ipu_model.predict.calibration import calibrated


class Verdict(str, Enum):
    """What the model says about fitting; `CLOSE` is all that it cannot be sure of."""

    FITS = "fits"
    CLOSE = "too close to call"
    DOES_NOT_FIT = "does not fit"

    def __str__(self) -> str:
        return self.value


class CloseBand(NamedTuple):
    """The shares of a tile's memory between which the model cannot tell: (0.95, 1.05) is 5 % around a full tile."""

    low: float
    high: float

    def verdict(self, share: float) -> Verdict:
        """Return the verdict on a program whose fullest tile holds `share` of its memory."""
        if share > self.high:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if share <= self.low else Verdict.CLOSE


def close_band() -> CloseBand:
    """Return the band that the published rows leave open."""
    share = calibrated().memory.close_share
    return CloseBand(1.0 - share, 1.0 + share)


def close_share_of(ran: Iterable[float], failed: Iterable[float]) -> float:
    """Return how far from a full tile a verdict stays open, on either side, as a share of a tile.

    `ran` and `failed` are the shares of a tile that the model gives to programs that ran on hardware, and to those that
    were out of memory. The result is the largest distance by which one of them lies on the wrong side of a full tile,
    rounded up to a whole per cent. So no published program gets the wrong verdict, and the band grows where the model
    gets worse.
    """
    wrong = max(0.0, max(ran, default=0.0) - 1.0, 1.0 - min(failed, default=2.0))
    return math.floor(wrong * 100 + 1) / 100
