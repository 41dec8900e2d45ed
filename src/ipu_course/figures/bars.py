"""Bars beside each other: a few things, compared in one or more quantities."""

from __future__ import annotations

from typing import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.style import AREA_LOOKS, INK, check_lines, in_style, new_figure, only_grid, rows_named

GROUP_WIDTH = 0.8
ROW_INCHES = 0.28
MISSING = "none"


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
) -> Figure:
    """Horizontal bars: for each label one bar of each of ``groups`` (at most 3), with its value at its end.

    ``None`` is drawn as the word ``missing``. ``limit`` is a line (value, words) across all bars. ``percent``
    takes shares from 0 to 1. Raises ``ValueError`` for more groups than looks and for groups of another length.
    """
    check_lines(len(groups), len(AREA_LOOKS))
    for name, values in groups.items():
        if len(values) != len(labels):
            raise ValueError(f"the group {name!r} has {len(values)} values for {len(labels)} labels")
    with in_style():
        figure, axes = new_figure(1.1 + ROW_INCHES * len(labels) * (len(groups) + 0.6))
        height = GROUP_WIDTH / len(groups)
        largest = max([0.0, *(value for values in groups.values() for value in values if value is not None)])
        for number, (name, values) in enumerate(groups.items()):
            places = [row - GROUP_WIDTH / 2 + (number + 0.5) * height for row in range(len(labels))]
            widths = [0.0 if value is None else value for value in values]
            axes.barh(places, widths, height=0.92 * height, label=name, **AREA_LOOKS[number])
            for place, value in zip(places, values):
                text = missing if value is None else f"{value:.1%}" if percent else form.format(value)
                axes.text((value or 0.0) + 0.01 * largest, place, text, va="center", fontsize=9)
        _label(axes, labels, xlabel, title, percent)
        if limit is not None:
            axes.axvline(limit[0], color=INK, linestyle="--", linewidth=1.2)
            axes.text(limit[0], -0.62, f" {limit[1]}", fontsize=9, va="bottom")
        if len(groups) > 1:
            figure.legend(loc="outside lower center", ncol=len(groups), frameon=False)
    return figure


def _label(axes: Axes, labels: Sequence[str], xlabel: str, title: str, percent: bool) -> None:
    rows_named(axes, labels)
    axes.margins(x=0.12)
    axes.set(xlabel=xlabel, title=title)
    only_grid(axes, "x")
    if percent:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
