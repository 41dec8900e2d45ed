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
    """Return the shares of a tile between which published outcomes do not decide whether a program fits."""
    constants = calibrated().memory
    return CloseBand(constants.close_low, constants.close_high)


def close_band_of(ran: Iterable[float], failed: Iterable[float], overestimate: float) -> CloseBand:
    """Work out from published outcomes and memory reports between which shares of a tile the verdict stays open.

    `ran` and `failed` are the shares of a tile that the model gives to programs that ran on hardware, and to those that
    were out of memory; `overestimate` is the largest relative error by which it overfills a published report. Below a
    full tile the band reaches down to the least of the programs that failed. Above a full tile it is a margin, because
    refusing a program that would run is the worse mistake: it allows for an error as large as that of the worst report,
    and in any case includes the largest of the programs that ran. Both ends are rounded outwards to a tenth of a per
    cent. So no published program gets the wrong verdict, and the band grows where the model gets worse.
    """
    least, most = min(failed, default=math.inf), max(ran, default=1.0)
    low = 1.0 if least > 1.0 else math.floor(least * 1000) / 1000
    if low >= least:  # the lower end itself still fits, and a program that failed must not
        low = round(low - 0.001, 3)
    return CloseBand(low, math.ceil(max(1.0 + overestimate, most, 1.0) * 1000) / 1000)
