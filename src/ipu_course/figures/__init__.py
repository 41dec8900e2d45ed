"""The course's figures: one style, readable in print and without colour vision, each with its description.

Charts take values; drawings explain a concept and return a ``Drawing``, a figure with its description.
"""

from __future__ import annotations

from ipu_course.figures.bars import bars_figure
from ipu_course.figures.board import Drawing
from ipu_course.figures.curves import curves_figure
from ipu_course.figures.histogram import histogram_figure
from ipu_course.figures.roofline import Roof, RooflinePoint, roofline
from ipu_course.figures.schedule import schedule
from ipu_course.figures.shown import png
from ipu_course.figures.streaming_state import streaming_state
from ipu_course.figures.tile import tile

__all__ = [
    "Drawing",
    "Roof",
    "RooflinePoint",
    "bars_figure",
    "curves_figure",
    "histogram_figure",
    "png",
    "roofline",
    "schedule",
    "streaming_state",
    "tile",
]
