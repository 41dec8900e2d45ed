"""The course's figures: one style, readable in print and without colour vision, each with its description."""

from __future__ import annotations

from ipu_course.figures.bars import bars_figure
from ipu_course.figures.curves import curves_figure
from ipu_course.figures.histogram import histogram_figure
from ipu_course.figures.schedule import schedule_figure
from ipu_course.figures.shown import png, show
from ipu_course.figures.utilisation import utilisation_figure

__all__ = [
    "bars_figure",
    "curves_figure",
    "histogram_figure",
    "png",
    "schedule_figure",
    "show",
    "utilisation_figure",
]
