"""How far off the model is on ratios of two published rows of programs that differ in one thing.

Whoever chooses between two plans needs ratios, and what is wrong with both figures alike cancels out in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ipu_model.predict.band import RatioErrors
from published.rows import Curve, published

ALL = "all"


@dataclass(frozen=True)
class Ratio:
    """The second of two rows over the first: published, and the signed relative error of the modelled ratio."""

    curve: Curve
    rows: tuple[str, str]
    published: float
    error: float


def ratios(errors: Mapping[str, float]) -> tuple[Ratio, ...]:
    """Return the ratios of neighbours on all curves; `errors` are the signed relative errors of known rows, by id."""
    values = {row.id: row.value for row in published().rows}
    return tuple(
        Ratio(curve, (first, second), values[second] / values[first], (1 + errors[second]) / (1 + errors[first]) - 1)
        for curve in published().curves
        for first, second in pairwise(curve.rows)
        if first in errors and second in errors
    )


def ratio_errors(errors: Mapping[str, float]) -> dict[str, RatioErrors]:
    """Return the errors of all ratios, and of those by what changes; beside them those of the rows themselves."""
    found = ratios(errors)
    summaries = {}
    for change in (ALL, *dict.fromkeys(ratio.curve.change for ratio in found)):
        some = [ratio for ratio in found if change in (ALL, ratio.curve.change)]
        sizes = [abs(ratio.error) for ratio in some]
        alone = [abs(errors[row]) for row in dict.fromkeys(row for ratio in some for row in ratio.rows)]
        figures = median(sizes), max(sizes), median(alone), max(alone)
        summaries[change] = RatioErrors(len(some), *(round(figure, 3) for figure in figures))
    return summaries
