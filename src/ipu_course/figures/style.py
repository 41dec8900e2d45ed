"""The style of all the course's figures. The IPU Model's reports have the same style; a test compares the two."""

from __future__ import annotations

from typing import Any, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# From Okabe and Ito's palette, whose colours stay apart for colour-blind readers. On grey paper the forward
# passes are dark and the backward passes light; hatching, letters and line styles say the same once more.
BLUE, YELLOW, ORANGE, GREEN = "#0072B2", "#F5D27A", "#D55E00", "#009E73"
INK, GREY, HATCH = "#333333", "#EBEBEB", "#D9A920"
SLATE, PALE_SLATE = "#5A5A78", "#D5D5E3"
LINE_STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, ":", "^"))
# Any: matplotlib types the settings as one Literal of all their names, and older versions as plain strings.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.8,
}
WIDTH_INCHES = 9.5
DOTS_PER_INCH = 160


def in_style() -> Any:
    """Return a context in which matplotlib has the course's style; the learner's own settings stay as they are."""
    return matplotlib.rc_context(STYLE)


def new_figure(height: float) -> tuple[Figure, Axes]:
    """Return a figure of the course's width and ``height`` inches and its axes. Call it within ``in_style()``."""
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    return figure, figure.add_subplot()


def only_grid(axes: Axes, axis: Any = "y") -> None:
    """Draw the grid lines of one ``axis`` only, behind the data."""
    axes.grid(axis=axis, color=GREY)
    axes.set_axisbelow(True)


def rows_named(axes: Axes, names: Sequence[str]) -> None:
    """Make one row for each name, from the top, without marks at the axis."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.5, -0.7)
    axes.tick_params(axis="y", length=0)


def check_lines(count: int, styles: int) -> None:
    """Raise ``ValueError`` for more lines or areas than styles that can be told apart."""
    if count > styles:
        raise ValueError(f"{count} lines asked for, but only {styles} can be told apart")
