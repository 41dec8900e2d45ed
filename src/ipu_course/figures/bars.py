"""Bars beside each other, which compare a few things in one or more quantities."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.looks import COMPARED, Look
from ipu_course.figures.style import INK, check_lines, in_style, new_figure, only_grid, rows_named

GROUP_WIDTH = 0.8
ROW_INCHES = 0.28
MISSING = "none"
ROOM_AT_THE_END = 4.0  # for the values, on a logarithmic axis


def bars_figure(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    xlabel: str,
    title: str,
    *,
    form: str = "{:,.3g}",
    percent: bool = False,
    missing: str = MISSING,
    limit: tuple[float, str] | None = None,
    log: bool = False,
    looks: Sequence[Look] = COMPARED,
) -> Figure:
    """Draw horizontal bars: for each label one bar of each of ``groups`` (at most 3), with its value at its end.

    ``None`` is drawn as the word ``missing``. ``limit`` is a line (value, words) across all bars. ``percent``
    takes shares from 0 to 1. ``log`` makes the axis logarithmic, where 0.1 % stands beside 100 %. Groups with a
    meaning of their own, such as forward passes, bring their ``looks``. Raises ``ValueError`` for more groups than
    looks and for groups of another length.
    """
    check_lines(len(groups), len(looks))
    for name, values in groups.items():
        if len(values) != len(labels):
            raise ValueError(f"the group {name!r} has {len(values)} values for {len(labels)} labels")
    with in_style():
        figure, axes = new_figure(1.1 + ROW_INCHES * len(labels) * (len(groups) + 0.6))
        height = GROUP_WIDTH / len(groups)
        given = [value for values in groups.values() for value in values if value is not None]
        start = _log_start(given) if log else 0.0
        for number, (name, values) in enumerate(groups.items()):
            places = [row - GROUP_WIDTH / 2 + (number + 0.5) * height for row in range(len(labels))]
            widths = [0.0 if value is None else max(0.0, value - start) for value in values]
            axes.barh(places, widths, left=start, height=0.92 * height, label=name, **looks[number].area())
            for place, value in zip(places, values):
                text = missing if value is None else _percentage(value, log) if percent else form.format(value)
                end = start if value is None else max(start, value)
                axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        if log:
            axes.set(xscale="log", xlim=(start, ROOM_AT_THE_END * max([start, *given])))
        _label(axes, labels, xlabel, title, percent, log)
        if limit is not None:
            axes.axvline(limit[0], color=INK, linestyle="--", linewidth=1.2)
            axes.text(limit[0], -0.62, f" {limit[1]}", fontsize=9, va="bottom")
        if len(groups) > 1:
            figure.legend(loc="outside lower center", ncol=len(groups), frameon=False)
    return figure


def _log_start(values: Sequence[float]) -> float:
    """Return where a logarithmic axis begins: a power of ten below every value, as it has no zero."""
    smallest = min((value for value in values if value > 0), default=1.0)
    return float(10.0 ** math.floor(math.log10(smallest) - 0.3))


def _label(axes: Axes, labels: Sequence[str], xlabel: str, title: str, percent: bool, log: bool) -> None:
    rows_named(axes, labels)
    if not log:
        axes.margins(x=0.12)
    axes.set(xlabel=xlabel, title=title)
    only_grid(axes, "x")
    if percent:
        axes.xaxis.set_major_formatter((lambda share, _: f"{100 * share:g}%") if log else PercentFormatter(1.0))


def _percentage(share: float, log: bool) -> str:
    """Return a share as a percentage: with one digit after the point, or with two digits where sizes differ much."""
    return f"{float(f'{100 * share:.2g}'):g}%" if log else f"{share:.1%}"
