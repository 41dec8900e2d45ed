"""Curves over one setting: what changes when you change it."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from ipu_course.figures.style import INK, LINE_STYLES, check_lines, in_style, new_figure, only_grid

HEIGHT_INCHES = 3.4


def curves_figure(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    xlabel: str,
    ylabel: str,
    title: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    marked: Mapping[str, tuple[float, float]] | None = None,
    from_zero: bool = False,
    hollow: Mapping[str, Sequence[bool]] | None = None,
    hollow_label: str = "too close to call",
) -> Figure:
    """Draw a line with markers for each of ``curves`` (at most 3) over ``x``; labels carry the units.

    ``None`` leaves a gap. ``percent`` writes shares (0 to 1) as percentages. ``marked`` maps texts to points
    (x, y), drawn as diamonds, for published values. ``hollow`` tells for each point of some curves whether it is in
    doubt: such points are drawn hollow, and the legend calls them ``hollow_label``. Raises ``ValueError`` for more
    lines than styles and for curves that are not as long as ``x``.
    """
    check_lines(len(curves), len(LINE_STYLES))
    for name, values in curves.items():
        if len(values) != len(x):
            raise ValueError(f"the curve {name!r} has {len(values)} values for {len(x)} places")
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        for (name, values), (colour, dashes, marker) in zip(curves.items(), LINE_STYLES):
            heights = [float("nan") if value is None else value for value in values]
            axes.plot(x, heights, color=colour, linestyle=dashes, marker=marker, linewidth=2, markersize=5, label=name)
        _hollow(axes, x, curves, hollow or {}, hollow_label)
        _scales(axes, x, log_x, log_y, percent, from_zero)
        _mark(axes, marked or {})
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        only_grid(axes)
        if len(curves) > 1 or marked or hollow:
            axes.legend(frameon=False, loc="best")
    return figure


def _hollow(
    axes: Axes,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    hollow: Mapping[str, Sequence[bool]],
    label: str,
) -> None:
    """Draw the points in doubt again, in the form of their curve, with one key for all of them."""
    form: Any = {"markersize": 11, "markeredgewidth": 2, "markerfacecolor": "white", "linestyle": "none"}
    drawn = False
    for (name, values), (colour, _, marker) in zip(curves.items(), LINE_STYLES):
        for place, value, in_doubt in zip(x, values, hollow.get(name, ())):
            if in_doubt and value is not None:
                axes.plot(place, value, marker, color=colour, zorder=4, clip_on=False, **form)
                drawn = True
    if drawn:
        axes.plot([], [], "o", color=INK, label=label, **form)


def _scales(axes: Axes, x: Sequence[float], log_x: bool, log_y: bool, percent: bool, from_zero: bool) -> None:
    if log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(x), [f"{place:g}" for place in x])
        axes.xaxis.set_minor_locator(NullLocator())
    elif all(float(place).is_integer() for place in x):  # epochs and counts have no halves
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log_y:
        axes.set_yscale("log")
    elif from_zero:
        axes.set_ylim(bottom=0)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _mark(axes: Axes, marked: Mapping[str, tuple[float, float]]) -> None:
    """Draw the points with one key for all of them; their texts stand beside the points."""
    for number, (text, (x, y)) in enumerate(marked.items()):
        label = "published" if number == 0 else None
        axes.plot(x, y, "D", color=INK, markersize=7, linestyle="none", label=label, zorder=5)
        axes.annotate(text, (x, y), (8, 8), textcoords="offset points", fontsize=9)
