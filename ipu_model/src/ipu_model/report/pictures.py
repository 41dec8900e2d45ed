"""The figures of a page as SVG, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ipu_model.profiling.data import Profile
from ipu_model.report import descriptions
from ipu_model.report.findings import first_iteration

ITERATION = "iteration"
DESCRIBED = {
    "timeline": descriptions.timeline,
    ITERATION: descriptions.iteration,
    "host-device": descriptions.host_device,
    "cycles": descriptions.cycles,
    "memory-per-tile": descriptions.memory_per_tile,
    "memory-categories": descriptions.memory_categories,
    "liveness": descriptions.liveness,
}


def pictures(profile: Profile) -> Mapping[str, str] | None:
    """Return the `<svg>` elements of the figures in `DESCRIBED`; `None` without matplotlib.

    The one of a single device iteration is there only for programs that run several.
    """
    try:
        from ipu_model.report import figures
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.split(".")[0] != "matplotlib":
            raise
        return None
    iteration = first_iteration(profile)
    drawn: dict[str, Callable[[Profile], Any]] = {
        "timeline": figures.timeline_figure,
        "host-device": figures.host_device_figure,
        "cycles": figures.cycles_figure,
        "memory-per-tile": figures.memory_per_tile_figure,
        "memory-categories": figures.memory_category_figure,
        "liveness": figures.liveness_figure,
    }
    if iteration is not None:
        drawn[ITERATION] = lambda each: figures.timeline_figure(each, iteration)
    return {name: figures.inline_svg(draw(profile), name, DESCRIBED[name](profile)) for name, draw in drawn.items()}
