"""Throughput over replicas beside perfect scaling, with one number of replicas circled."""

from __future__ import annotations

from typing import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ipu_course.figures.style import INK, LINE_STYLES, in_style, new_figure, only_grid

HEIGHT_INCHES = 3.6


def scaling_figure(
    replicas: Sequence[int],
    theory: Sequence[float],
    modelled: Sequence[float | None],
    chosen: tuple[int, float],
    title: str,
) -> Figure:
    """Draw images per second against replicas, both logarithmic, and circle ``chosen`` (replicas, images per second).

    ``None`` in ``modelled`` leaves a gap.
    """
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        for name, values, (colour, dashes, marker) in zip(
            ("perfect scaling", "modelled"), (theory, modelled), LINE_STYLES
        ):
            heights = [float("nan") if value is None else value for value in values]
            axes.plot(
                replicas, heights, color=colour, linestyle=dashes, marker=marker, linewidth=2, markersize=5, label=name
            )  # fmt: skip
        axes.plot(
            *chosen, "o", markersize=14, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.6,
            linestyle="none", label="this setting",
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(list(replicas), [f"{count}" for count in replicas])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="replicas, one IPU each", ylabel="images/s", title=title)
        only_grid(axes)
        axes.legend(frameon=False, loc="upper left")
    return figure
