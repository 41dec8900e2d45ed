"""Histograms: how often values of each size occur, such as gradients, activations and weights."""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.style import GREY, INK, LINE_STYLES, check_lines, in_style, new_figure, only_grid

HEIGHT_INCHES = 3.4
MARKS = ("--", "-")


def histogram_figure(
    values: Mapping[str, Sequence[float]],
    xlabel: str,
    title: str,
    *,
    log2: bool = False,
    bands: Mapping[str, tuple[float, float]] | None = None,
    ylabel: str = "share of all values",
    marked: Mapping[str, float] | None = None,
) -> Figure:
    """Draw one outline for each of ``values`` (at most 3): the share of the values in each interval.

    With ``log2`` the intervals are powers of two of the absolute value, and zeros are left out. ``bands``
    maps names to ranges (low, high) of the axis, in exponents with ``log2``, which are shaded. ``marked`` maps at most
    2 names to values, drawn as upright lines. Raises ``ValueError`` for more outlines or lines than styles.
    """
    check_lines(len(values), len(LINE_STYLES))
    placed = {name: _placed(numbers, log2) for name, numbers in values.items()}
    ends = [end for numbers in placed.values() if len(numbers) for end in (numbers.min(), numbers.max())] or [0, 1]
    edges = np.arange(np.floor(min(ends)), np.ceil(max(ends)) + 2) if log2 else np.linspace(min(ends), max(ends), 61)
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        for (name, numbers), (colour, dashes, _) in zip(placed.items(), LINE_STYLES):
            shares = np.histogram(numbers, bins=edges)[0] / max(1, len(values[name]))
            axes.stairs(shares, edges, color=colour, linestyle=dashes, linewidth=2, label=name)
        _shade(axes, bands or {})
        _mark(axes, marked or {})
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title, pad=20 if bands else None)  # the bands' names stand between the title and the axes
        if log2:
            axes.xaxis.set_major_formatter(lambda exponent, _: f"$2^{{{exponent:.0f}}}$")
        only_grid(axes)
        if len(values) > 1 and bands:
            figure.legend(loc="outside lower center", ncol=len(values), frameon=False)
        elif len(values) > 1 or marked:
            axes.legend(frameon=False)
    return figure


def _placed(numbers: Sequence[float], log2: bool) -> np.ndarray:
    array = np.asarray(numbers, dtype=np.float64).ravel()
    array = array[np.isfinite(array)]
    if not log2:
        return array
    exponents: np.ndarray = np.log2(np.abs(array[array != 0]))
    return exponents


def _mark(axes: Axes, marked: Mapping[str, float]) -> None:
    check_lines(len(marked), len(MARKS))
    for (name, value), dashes in zip(marked.items(), MARKS):
        axes.axvline(value, color=INK, linestyle=dashes, linewidth=1.6, label=name, zorder=4)


def _shade(axes: Axes, bands: Mapping[str, tuple[float, float]]) -> None:
    for number, (name, (low, high)) in enumerate(bands.items()):
        hatch = ("", "////", "....")[number % 3]
        axes.axvspan(low, high, facecolor=GREY, edgecolor="white", hatch=hatch, zorder=0)
        axes.text(
            (low + high) / 2,
            1.0,
            name,
            ha="center",
            va="bottom",
            color=INK,
            fontsize=9,
            transform=axes.get_xaxis_transform(),
        )
