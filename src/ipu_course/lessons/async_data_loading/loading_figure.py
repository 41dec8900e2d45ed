"""When the loader loads and when the calls run, on a common axis of time."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course.figures.looks import LOAD
from ipu_course.figures.style import BLUE, GREY, in_style, new_figure, only_grid
from ipu_course.lessons.async_data_loading.loading import Event, LoadingTimeline

ROW_INCHES = 0.42
HALF_ROW = 0.36
MILLISECONDS = 1000.0
NARROWEST_LABELLED = 0.015
# The numbers on the hatched bars stand on white, or they could not be read.
LABEL_BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
LOADING_LOOK: dict[str, Any] = LOAD.area(0.8)


def loading_timeline_figure(timeline: LoadingTimeline, loaders: str, title: str, until: float) -> Figure:
    """A row for each loader and one for the calls; numbers say for which call. ``until`` ends the axis, in seconds.

    ``loaders`` is what one of them is called. Grey is waiting.
    """
    rows = 1 + max(event.row or 0 for event in timeline.loads)
    with in_style():
        figure, axes = new_figure(1.45 + ROW_INCHES * (rows + 1))
        for row in range(rows + 1):
            axes.barh(row, until * MILLISECONDS, height=2 * HALF_ROW, color=GREY)
        for event in (*timeline.loads, *timeline.calls):
            if event.start < until:
                _draw(axes, event, rows, until)
        names = [loaders] if rows == 1 else [f"{loaders} {row + 1}" for row in range(rows)]
        axes.set_yticks(range(rows + 1), [*names, "calls on the IPUs"])
        axes.set_ylim(rows + 0.5, -0.5)
        axes.set_xlim(0, until * MILLISECONDS)
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="milliseconds", title=title)
        only_grid(axes, "x")
        keys = [
            Patch(label="loading the data of call 1, 2, ...", **LOADING_LOOK),
            Patch(facecolor=BLUE, label="call 1, 2, ..."),
            Patch(facecolor=GREY, label="waiting"),
        ]
        figure.legend(handles=keys, loc="outside lower center", ncol=len(keys), frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, event: Event, rows: int, until: float) -> None:
    place = rows if event.row is None else event.row
    look: dict[str, Any] = (
        {"facecolor": BLUE, "edgecolor": "white", "linewidth": 0.8} if event.row is None else LOADING_LOOK
    )
    end = min(event.end, until)
    start, width = event.start * MILLISECONDS, (end - event.start) * MILLISECONDS
    axes.barh(place, width, left=start, height=2 * HALF_ROW, **look)
    if end - event.start > NARROWEST_LABELLED * until:
        colour, box = ("white", None) if event.row is None else ("black", LABEL_BOX)
        middle = start + width / 2
        axes.text(middle, place, str(event.number + 1), ha="center", va="center", fontsize=9, color=colour, bbox=box)
