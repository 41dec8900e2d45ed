"""What drawings of concepts are drawn on: a sheet measured in inches, with boxes, arrows and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from ipu_course.figures.looks import WHITE, Look
from ipu_course.figures.style import INK

SHEET_INCHES = 7.6
"""Narrower than the charts, so that its words can still be read on a telephone."""
TEXT, SMALL, LARGE = 11.0, 10.0, 13.0


@dataclass(frozen=True)
class Drawing:
    """A figure and its description, which is the alternative text and carries the numbers."""

    figure: Figure
    description: str


class Place(NamedTuple):
    """A rectangle on the sheet: its lower left corner and its size, in inches."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        """The centre."""
        return self.x + self.width / 2, self.y + self.height / 2


def sheet(height: float) -> tuple[Figure, Axes]:
    """Return an empty sheet ``height`` inches high, whose coordinates are inches. Call it within ``in_style()``."""
    figure = Figure(figsize=(SHEET_INCHES, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, SHEET_INCHES), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def chart(height: float) -> tuple[Figure, Axes]:
    """Return one pair of axes on a figure as wide as a sheet. Call it within ``in_style()``."""
    figure = Figure(figsize=(SHEET_INCHES, height), layout="constrained")
    return figure, figure.add_subplot()


def box(axes: Axes, place: Place, look: Look, text: str = "", *, round_by: float = 0.0, **words: Any) -> None:
    """Draw a filled rectangle with ``text`` in its middle."""
    settings = {**look.area(1.0), "zorder": 2}
    if round_by:
        style = f"round,pad=0,rounding_size={round_by}"
        axes.add_patch(FancyBboxPatch(place[:2], place.width, place.height, boxstyle=style, **settings))
    else:
        axes.add_patch(Rectangle(place[:2], place.width, place.height, **settings))
    if text:
        write(axes, place.middle, text, **{"color": look.text, **words})


def write(axes: Axes, at: tuple[float, float], text: str, **words: Any) -> None:
    """Write ``text`` around a point."""
    settings = {"ha": "center", "va": "center", "fontsize": TEXT, "color": INK, "zorder": 6, "linespacing": 1.25}
    axes.text(*at, text, **{**settings, **words})


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
    """Draw an arrow; ``arrowstyle="<|-|>"`` makes it point both ways."""
    settings = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.8, "mutation_scale": 14, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(begin, end, zorder=5, **{**settings, **look}))


def keys(figure: Figure, entries: Iterable[tuple[str, Look]], columns: int = 4) -> None:
    """Put a legend below everything else: names with their looks."""
    handles = [
        Rectangle((0.0, 0.0), 1, 1, label=name, **{**look.area(), "edgecolor": _outline(look)})
        for name, look in entries
    ]
    place: Any = {"loc": "outside lower center", "ncol": min(columns, len(handles))}
    figure.legend(handles=handles, frameon=False, fontsize=SMALL, handlelength=1.8, columnspacing=1.4, **place)


def _outline(look: Look) -> str:
    """Return the colour of a key's outline: its own, unless that is white and would not be seen."""
    return INK if look.edge == WHITE and not look.hatch else look.edge


def without_frame(axes: Axes, *sides: str) -> None:
    """Take away spines on these sides, and the marks of the vertical axis."""
    axes.tick_params(axis="y", length=0)
    for side in sides:
        axes.spines[side].set_visible(False)
