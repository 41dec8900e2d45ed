"""One weight update: where its time goes, and what fills the fullest tile."""

from __future__ import annotations

from typing import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures import looks
from ipu_course.figures.style import GREEN, GREY, INK, WIDTH_INCHES, in_style, only_grid

ROW_INCHES = 0.34
COPIES, STATE = "copies of state", "optimiser's state"
# Copies have the look that the timeline gives them.
LOOKS = {
    COPIES: looks.Look(looks.WHITE, "////", GREEN),
    STATE: looks.OPTIMISER_STATE,
    "weights": looks.WEIGHTS,
}
REST = looks.Look(GREY, text=INK)


def update_figure(milliseconds: Mapping[str, float], kib: Mapping[str, float], memory_label: str, title: str) -> Figure:
    """Draw bars for the parts of the time, and below them bars for the parts of one tile.

    ``memory_label`` says in which unit and where.
    """
    with in_style():
        heights = [len(milliseconds), len(kib)]
        figure = Figure(figsize=(WIDTH_INCHES, 1.8 + ROW_INCHES * sum(heights)), layout="constrained")
        time, memory = figure.subplots(2, 1, height_ratios=heights)
        bars(time, milliseconds, "{:.1f}", "ms of one weight update")
        bars(memory, kib, "{:.0f}", memory_label)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def bars(axes: Axes, parts: Mapping[str, float], form: str, label: str) -> None:
    """Draw one bar for each part, with its value in the format ``form``; ``label`` names the axis."""
    largest = max([*parts.values(), 1e-9])
    for row, (name, value) in enumerate(parts.items()):
        axes.barh(row, value, height=0.7, **LOOKS.get(name, REST).area())
        axes.text(value + 0.015 * largest, row, form.format(value), va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(0, 1.15 * largest)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    only_grid(axes, "x")
