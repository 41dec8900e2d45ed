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

from ipu_model.predict.calibration import Calibration, calibrated, fitted
from published.comparison import Compared
from published.predictions import Predictions
from published.rows import Kind, Row

STEP = 0.02
"""By how much, relative to its value, a constant is moved to see what it does."""


@dataclass(frozen=True)
class LeftOut:
    """One row: its error with all rows fitted, and with the constants refitted to the other measurements."""

    row: Row
    with_all: float
    without: float


@dataclass(frozen=True)
class Untested:
    """A fitted row that cannot be left out: no other measurement determines these constants."""

    row: Row
    constants: tuple[str, ...]


def leave_one_out(rows: Iterable[Row]) -> tuple[tuple[LeftOut, ...], tuple[Untested, ...]]:
    """Refit the fitted constants without each measurement in turn; of `rows`, those count that are fitted.

    Rows depend almost linearly on the constants, so that one least-squares step on relative errors does: with
    J the rows' relative change for each constant's relative change and e their errors, the step d of the
    constants solves min |J d + e|.
    """
    testable, untested = _sorted_out([row for row in rows if row.kind is Kind.FITTED])
    if not testable:
        return (), untested
    names = sorted({name for row in testable for name in row.settles})
    errors = _errors(testable, calibrated())
    slopes = np.stack([_slope(testable, errors, name) for name in names], axis=1)
    tested = []
    for index, row in enumerate(testable):
        others = [i for i, other in enumerate(testable) if other.measurement != row.measurement]
        step = np.linalg.lstsq(slopes[others], -errors[others], rcond=1e-6)[0]
        tested.append(LeftOut(row, float(errors[index]), float(errors[index] + slopes[index] @ step)))
    return tuple(tested), untested


def _sorted_out(rows: Sequence[Row]) -> tuple[Sequence[Row], tuple[Untested, ...]]:
    """Return the rows whose constants the other measurements determine, and the others.

    A row that cannot be tested takes no part in refits either, so the rows that are left are sorted out again.
    """
    untested: tuple[Untested, ...] = ()
    while True:
        lacking = [tuple(name for name in row.settles if not _is_determined_without(row, name, rows)) for row in rows]
        if not any(lacking):
            return rows, untested
        untested += tuple(Untested(row, names) for row, names in zip(rows, lacking) if names)
        rows = [row for row, names in zip(rows, lacking) if not names]


def _is_determined_without(row: Row, name: str, rows: Sequence[Row]) -> bool:
    """Whether enough other measurements depend on a constant: one for each constant that they share with it."""
    related = [other for other in rows if name in other.settles and other.measurement != row.measurement]
    unknown = {constant for other in related for constant in other.settles if constant in fitted()}
    return bool(related) and len({other.measurement for other in related}) >= len(unknown)


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
