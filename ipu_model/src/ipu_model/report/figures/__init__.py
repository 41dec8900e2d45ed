"""The figures of a report, in one style. The only part of the engine that needs matplotlib.

Each function takes a `Profile` and returns a matplotlib `Figure`, which nothing has shown or registered;
`report.findings` has the words that belong to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from ipu_model.predict.profile import Profile
from ipu_model.report.figures.memory import liveness_figure, memory_category_figure, memory_per_tile_figure
from ipu_model.report.figures.timeline import cycles_figure, host_device_figure, timeline_figure

DRAWN: Mapping[str, Callable[[Profile], Figure]] = {
    "timeline": timeline_figure,
    "host-device": host_device_figure,
    "cycles": cycles_figure,
    "memory-per-tile": memory_per_tile_figure,
    "memory-categories": memory_category_figure,
    "liveness": liveness_figure,
}
"""The figures of a profile, by the names that `report.findings.DESCRIBED` has for them."""
