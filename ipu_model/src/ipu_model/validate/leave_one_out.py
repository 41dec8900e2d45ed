"""What each fitted row's error would be, had the constants been fitted without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_model.predict.calibration import Calibration, calibrated, constant_facts, fitted
from ipu_model.validate.comparison import Compared, Row, published_rows
from ipu_model.validate.predictions import Predictions

STEP = 0.02
"""By how much, relative to its value, a constant is moved to see what it does."""
SENSITIVE = 0.05
"""A row depends on a constant if it moves by at least this share of the constant's relative change."""


@dataclass(frozen=True)
class LeftOut:
    """One row: its error with all rows fitted, and with the constants refitted to the other rows.

    `without` is `None` where no other row settles a constant of this one.
    """

    row: Row
    with_all: float
    without: float | None


def leave_one_out() -> tuple[LeftOut, ...]:
    """Refit the fitted constants without each fitted row in turn.

    Rows depend almost linearly on the constants, so that one least-squares step on relative errors does: with
    J the rows' relative change for each constant's relative change and e their errors, the step d of the
    constants solves min |J d + e|.
    """
    rows = [row for row in published_rows() if set(row.settles) & set(fitted())]
    names = sorted({name for row in rows for name in row.settles if name in fitted()})
    errors = _errors(rows, calibrated())
    slopes = np.stack([_slope(rows, errors, name) for name in names], axis=1)
    found = []
    for index, row in enumerate(rows):
        others = [i for i in range(len(rows)) if i != index]
        step = np.linalg.lstsq(slopes[others], -errors[others], rcond=1e-6)[0]
        moved = slopes[index] @ step
        settled = _is_settled(slopes[others], slopes[index])
        found.append(LeftOut(row, float(errors[index]), float(errors[index] + moved) if settled else None))
    return tuple(found)


def _slope(rows: Sequence[Row], errors: np.ndarray, name: str) -> np.ndarray:
    section, constant = name.split(".")
    value = constant_facts()[section][constant].value
    moved = _errors(rows, calibrated().with_values({name: value * (1 + STEP)}))
    return np.asarray((moved - errors) / STEP)


def _errors(rows: Sequence[Row], calibration: Calibration) -> np.ndarray:
    predictions = Predictions(calibration)
    return np.array([Compared(row, predictions[row.id]).error for row in rows])


def _is_settled(others: np.ndarray, row: np.ndarray) -> bool:
    """Whether the other rows say something about every constant that this row depends on."""
    strong = np.abs(others).max(axis=0) > SENSITIVE
    return bool((strong | (np.abs(row) <= SENSITIVE)).all())
