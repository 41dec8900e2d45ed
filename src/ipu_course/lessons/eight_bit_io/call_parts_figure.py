"""What the time of a call is spent on: a bar of parts for each program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course import engine
from ipu_course.figures.looks import CALL, COMPUTE, LINK, LOAD
from ipu_course.figures.style import in_style, new_figure, only_grid

if TYPE_CHECKING:
    from ipu_course.call_parts import CallParts

PARTS = {
    "load": "host: load the images",
    "call": "host: the call",
    "stream": "IPUs: stream",
    "compute": "IPUs: compute, exchange, wait",
}
LOOKS = (LOAD, CALL, LINK, COMPUTE)
ROW_INCHES = 0.62
MILLISECONDS = 1000.0
# Narrower parts, as a share of the longest bar, get no number: it would not fit.
NARROWEST_LABELLED = 0.05


@engine.needs_the_model
def call_parts_figure(programs: Mapping[str, CallParts], title: str) -> Figure:
    """One bar for each program, its parts one behind another, in milliseconds.

    Loading that runs beside the rest has a bar of its own, above that of the rest.
    """
    rows = [row for name, parts in programs.items() for row in _rows(name, parts)]
    longest = max((sum(values.values()) for _, values in rows), default=0.0) * MILLISECONDS
    with in_style():
        figure, axes = new_figure(1.5 + ROW_INCHES * len(rows))
        for place, (_, values) in enumerate(rows):
            _draw_row(axes, place, values, longest)
        keys = [Patch(label=words, **look.area()) for look, words in zip(LOOKS, PARTS.values())]
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1.1 * longest or 1.0)
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="milliseconds per call", title=title)
        only_grid(axes, "x")
        figure.legend(handles=keys, loc="outside lower center", ncol=len(PARTS), frameon=False, fontsize=9)
    return figure


def _draw_row(axes: Axes, place: int, values: Mapping[str, float], longest: float) -> None:
    start = 0.0
    for look, part in zip(LOOKS, PARTS):
        width = values.get(part, 0.0) * MILLISECONDS
        if width:
            axes.barh(place, width, left=start, height=0.62, **look.area())
        if width > NARROWEST_LABELLED * longest:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text(start + width / 2, place, f"{width:.0f}", ha="center", va="center", fontsize=9, bbox=box)
        start += width
    axes.text(start + 0.008 * longest, place, f"{start:,.0f} ms", va="center", fontsize=9, fontweight="bold")


def _rows(name: str, parts: CallParts) -> list[tuple[str, dict[str, float]]]:
    rest = {"call": parts.call, "stream": parts.stream, "compute": parts.compute}
    if parts.overlaps:
        return [(name, {"load": parts.load}), ("at the same time", rest)]
    return [(name, {"load": parts.load, **rest})]
