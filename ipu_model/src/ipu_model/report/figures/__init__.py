"""The figures of a report, in one style. The only part of the engine that needs matplotlib.

Each function takes a `Profile` and returns a matplotlib `Figure`, which nothing has shown or registered;
`report.descriptions` has the words that belong to each.
"""

from ipu_model.report.figures.canvas import png
from ipu_model.report.figures.cycles import cycles_figure
from ipu_model.report.figures.liveness import liveness_figure
from ipu_model.report.figures.memory import memory_category_figure, memory_per_tile_figure
from ipu_model.report.figures.throughput import ThroughputPoint, throughput_figure
from ipu_model.report.figures.timeline import host_device_figure, timeline_figure
from ipu_model.report.figures.vector import inline_svg

__all__ = [
    "ThroughputPoint",
    "cycles_figure",
    "host_device_figure",
    "inline_svg",
    "liveness_figure",
    "memory_category_figure",
    "memory_per_tile_figure",
    "png",
    "throughput_figure",
    "timeline_figure",
]
