"""The course's figures: one style, readable in print and without colour vision, each with its description.

Charts take values; drawings explain a concept and return a ``Drawing``, a figure with its description.
"""

from __future__ import annotations

from ipu_course.figures.bars import bars_figure
from ipu_course.figures.curves import curves_figure
from ipu_course.figures.drawing import Drawing
from ipu_course.figures.drawings.bulk_synchronous import bulk_synchronous
from ipu_course.figures.drawings.chip import chip
from ipu_course.figures.drawings.ipu_system import ipu_system
from ipu_course.figures.drawings.ring_all_reduce import ring_all_reduce
from ipu_course.figures.drawings.roofline import Roof, RooflinePoint, roofline
from ipu_course.figures.drawings.round_trips import round_trips
from ipu_course.figures.drawings.schedule import schedule
from ipu_course.figures.drawings.streaming_state import streaming_state
from ipu_course.figures.drawings.tile import tile
from ipu_course.figures.drawings.utilisation import utilisation
from ipu_course.figures.histogram import histogram_figure
from ipu_course.figures.shown import png

__all__ = [
    "Drawing",
    "Roof",
    "RooflinePoint",
    "bars_figure",
    "bulk_synchronous",
    "chip",
    "curves_figure",
    "histogram_figure",
    "ipu_system",
    "png",
    "ring_all_reduce",
    "roofline",
    "round_trips",
    "schedule",
    "streaming_state",
    "tile",
    "utilisation",
]
