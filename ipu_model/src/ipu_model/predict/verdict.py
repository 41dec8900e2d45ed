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
    constants = calibrated().memory
    return CloseBand(constants.close_low, constants.close_high)


def close_band_of(ran: Iterable[float], failed: Iterable[float]) -> CloseBand:
    """Return the band that published outcomes leave open.

    `ran` and `failed` are the shares of a tile that the model gives to programs that ran on hardware, and to those that
    were out of memory. Below a full tile the band reaches down to the least of those that failed, above it up to the
    largest of those that ran, both rounded outwards to whole per cent; where none lies on the wrong side of a full
    tile, it ends there. So no published program gets the wrong verdict, and the band grows where the model gets worse.
    """
    least, most = min(failed, default=math.inf), max(ran, default=1.0)
    if least > 1.0:
        low = 1.0
    else:
        low = math.floor(least * 100) / 100
        if low >= least:  # the lower end itself still fits, and a program that failed must not
            low = round(low - 0.01, 2)
    return CloseBand(low, max(1.0, math.ceil(most * 100) / 100))
