"""Memory against throughput of many settings of one program, with those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from ipu_model.errors import Error
from ipu_model.report.figures.canvas import in_style, new_figure, note_point, only_grid, words
from ipu_model.report.looks import BLUE, GREEN, INK, ORANGE

_WIDEST = 3.0
"""Settings that need more tiles' worth of memory than this on one tile are drawn at the edge."""


@dataclass(frozen=True)
class FrontierPoint:
    """One setting: the share of its memory that the fullest tile needs, its samples a second, and whether it fits.

    `name` is written beside it.
    """

    share: float
    samples_per_second: float
    fits: bool
    is_on_frontier: bool = False
    name: str = ""


def frontier_figure(points: Sequence[FrontierPoint]) -> Figure:
    """Return memory against throughput: a point for each setting, and a line through those that none beats.

    Raises:
        Error: no points.
    """
    if not points:
        raise Error("A figure of the frontier needs at least one point.")
    with in_style():
        figure = new_figure(3.8)
        axes = figure.add_subplot()
        _draw(axes, points)
        axes.set_title("Memory against throughput of the settings tried (modelled)")
        axes.legend(frameon=False, fontsize=9, loc="best")
    return figure


def _draw(axes: Axes, points: Sequence[FrontierPoint]) -> None:
    for label, fits, colour, marker in (("fits", True, GREEN, "o"), ("does not fit for certain", False, ORANGE, "x")):
        chosen = [point for point in points if point.fits is fits]
        if chosen:
            axes.scatter(
                [_at(point) for point in chosen], [point.samples_per_second for point in chosen],
                color=colour, marker=marker, s=36, label=label, zorder=3,
            )  # fmt: skip
    front = sorted((_at(point), point.samples_per_second) for point in points if point.is_on_frontier)
    axes.plot(
        [share for share, _ in front], [speed for _, speed in front],
        color=BLUE, linewidth=1.5, drawstyle="steps-post", label="no setting beats these in both", zorder=2,
    )  # fmt: skip
    axes.axvline(1.0, color=INK, linestyle=":", linewidth=1.2)
    axes.set_xlabel("memory that the fullest tile needs, of what it has")
    axes.set_ylabel("samples per second")
    axes.set_ylim(0, 1.15 * max(point.samples_per_second for point in points))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    only_grid(axes, "both")
    for point in points:
        if point.name:
            note_point(axes, (_at(point), point.samples_per_second), words(point.name), point.samples_per_second)


def _at(point: FrontierPoint) -> float:
    return min(point.share, _WIDEST)
