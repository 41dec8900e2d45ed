"""How a network does for one scanner: shares of all images, and shares of all errors beside them."""

from __future__ import annotations

from typing import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.looks import COMPARED
from ipu_course.figures.style import WIDTH_INCHES, in_style, only_grid, rows_named
from ipu_course.lessons.sharded_debugging.scanners import Answers

GROUP_WIDTH = 0.8
HEIGHT_INCHES = 3.2


def scanner_figure(found: Mapping[str, Answers], title: str) -> Figure:
    """Draw accuracy and review rate on the left, of all images, and undetected errors on the right, of all errors.

    ``found`` has up to three number formats by name.
    """
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        images, errors = figure.subplots(1, 2, width_ratios=(3, 2))
        shares = {name: (each.right, each.reviewed) for name, each in found.items()}
        _bars(images, ("accuracy", "review rate"), shares, "percentage of all images")
        _bars(errors, ("undetected",), {name: (each.undetected,) for name, each in found.items()},
              "percentage of all errors")  # fmt: skip
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        handles, labels = images.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=len(found), frameon=False)
    return figure


def _bars(axes: Axes, labels: Sequence[str], groups: Mapping[str, Sequence[float]], xlabel: str) -> None:
    height = GROUP_WIDTH / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        places = [row - GROUP_WIDTH / 2 + (number + 0.5) * height for row in range(len(labels))]
        axes.barh(places, values, height=0.92 * height, label=name, **COMPARED[number].area())
        for place, value in zip(places, values):
            axes.annotate(f"{value:.1%}", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    rows_named(axes, labels)
    axes.set_xlim(0, 1.2)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    only_grid(axes, "x")
