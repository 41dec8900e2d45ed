"""Figures of benchmarks: throughput over batch sizes, and the latency of one batch in parts."""

from __future__ import annotations

from typing import Mapping, Sequence

from matplotlib.figure import Figure

from ipu_course.figures.looks import Look
from ipu_course.figures.style import BLUE, INK, ORANGE, in_style, new_figure, only_grid

HEIGHT_INCHES = 3.4
BAR_INCHES = 2.2


def throughput_figure(
    batches: Sequence[int],
    rates: Sequence[float],
    bands: Sequence[tuple[float, float]],
    published: Mapping[int, float],
    title: str,
) -> Figure:
    """Draw images per second over batch sizes, with published rates as diamonds.

    ``bands`` are the lowest and the highest rate for each batch size, drawn as an area.
    """
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        low, high = [band[0] for band in bands], [band[1] for band in bands]
        axes.fill_between(batches, low, high, color=BLUE, alpha=0.18, linewidth=0, label="error band")
        axes.plot(batches, rates, color=BLUE, marker="o", linewidth=2, markersize=5, label="modelled")
        axes.plot(
            list(published), list(published.values()), "D", color=ORANGE, markeredgecolor=INK, markersize=7,
            label="published", zorder=5,
        )  # fmt: skip
        axes.set_xticks(list(batches), [str(batch) for batch in batches])
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="batch size", ylabel="images/s", title=title)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        only_grid(axes)
        axes.legend(frameon=False, loc="lower right")
    return figure


def latency_figure(parts: Mapping[str, tuple[float, Look]], budget_ms: float, slow_ms: float, title: str) -> Figure:
    """Draw the latency of one batch as a bar of its parts, in ms, in the order in which they happen.

    ``budget_ms`` is a line across, and ``slow_ms`` is where the bar may end if the model is too fast.
    """
    with in_style():
        figure, axes = new_figure(BAR_INCHES)
        start = 0.0
        for name, (milliseconds, look) in parts.items():
            axes.barh(0, milliseconds, left=start, height=0.5, label=f"{name}: {milliseconds:.2f} ms", **look.area())
            start += milliseconds
        axes.plot([start, slow_ms], [0, 0], color=INK, linewidth=1.6, marker="|", markersize=12)
        axes.annotate("error band", (slow_ms, 0), (5, 0), textcoords="offset points", va="center", fontsize=9)
        axes.axvline(budget_ms, color=INK, linestyle="--", linewidth=1.2)
        axes.annotate(f"{budget_ms:g} ms", (budget_ms, 0.62), (4, 0), textcoords="offset points", fontsize=9)
        axes.set(xlabel="ms from the call to the result of one batch", title=title, ylim=(-0.45, 0.8))
        axes.set_xlim(0, 1.25 * max(slow_ms, budget_ms))
        axes.set_yticks([])
        only_grid(axes, "x")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.42), ncols=len(parts), fontsize=9)
    return figure
