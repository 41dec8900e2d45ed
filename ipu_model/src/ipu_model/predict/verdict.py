"""Whether a program fits into its tiles: yes, no, or too close for the model to tell."""

from __future__ import annotations

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
    return CloseBand(1.0 - constants.uncertainty, 1.0 + constants.refusal_margin)
