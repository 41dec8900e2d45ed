"""What each fitted row's error would be, had the constants been fitted without it.

That says something only where a constant has independent rows: the phases of one execution trace are sums and
differences of each other, so a row stands out only against other *measurements*. All rows of a measurement are left
out together, and where the rest does not determine a constant there is nothing to test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ipu_model.predict.calibration import Calibration, calibrated
from published.comparison import Compared
from published.predictions import Predictions
from published.rows import Kind, Row

_RANK = 1e-6
STEP = 0.02
"""By how much, relative to its value, a constant is moved to see what it does."""


@dataclass(frozen=True)
class LeftOut:
    """One row: its error with all rows fitted, and with the constants refitted to the other measurements.

    It cannot be left out if no other measurement determines some `lacking` constants.
    """

    row: Row
    with_all: float
    without: float
    lacking: tuple[str, ...] = ()


def leave_one_out(rows: Iterable[Row]) -> tuple[LeftOut, ...]:
    """Refit the fitted constants without each measurement in turn; of `rows`, those count that are fitted.

    Rows depend almost linearly on the constants, so that one least-squares step on relative errors does: with
    J the rows' relative change for each constant's relative change and e their errors, the step d of the
    constants solves min |J d + e|. A row whose own change is no combination of the others' has nothing to test it.
    """
    rows = [row for row in rows if row.kind is Kind.FITTED]
    names = sorted({name for row in rows for name in row.settles})
    errors = _errors(rows, calibrated())
    slopes = np.stack([_slope(rows, errors, name) for name in names], axis=1)
    results = []
    for row, error, slope in zip(rows, errors, slopes):
        others = [index for index, other in enumerate(rows) if other.measurement != row.measurement]
        undetermined = slope - slope @ np.linalg.pinv(slopes[others], _RANK) @ slopes[others]
        lacking = tuple(name for name, rest in zip(names, undetermined) if abs(rest) > _RANK)
        step = np.linalg.lstsq(slopes[others], -errors[others], rcond=_RANK)[0]
        results.append(LeftOut(row, float(error), float(error + slope @ step), lacking))
    return tuple(results)


def _slope(rows: Sequence[Row], errors: np.ndarray, name: str) -> np.ndarray:
    """Return how much the error of each row changes with a constant; only rows that settle it can."""
    value = attrgetter(name)(calibrated())
    settling = [index for index, row in enumerate(rows) if name in row.settles]
    moved = _errors([rows[index] for index in settling], calibrated().with_values({name: value * (1 + STEP)}))
    slope = np.zeros(len(rows))
    slope[settling] = (moved - errors[settling]) / STEP
    return slope


def _errors(rows: Sequence[Row], calibration: Calibration) -> np.ndarray:
    predictions = Predictions(calibration)
    return np.array([Compared(row, predictions.value(row)).error for row in rows])
