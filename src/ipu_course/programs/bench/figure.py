"""The figure of a sweep: rate, memory and, in inference, latency over the batch size."""

from __future__ import annotations

from typing import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ipu_course.figures.style import BLUE, INK, ORANGE, WIDTH_INCHES, in_style, only_grid
from ipu_course.programs.bench.results import Result

HEIGHT_INCHES = 3.4


def sweep_figure(results: Sequence[Result], title: str) -> Figure:
    """Panels over the batch size: images/s, latency (inference only) and the fullest tile, all modelled.

    What is not sure to fit is drawn hollow. Raises ``ValueError`` for no results.
    """
    if not results:
        raise ValueError("there are no results to draw")
    inference = results[0].latency_seconds is not None
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        panels = figure.subplots(1, 3 if inference else 2, squeeze=False)[0]
        _panel(panels[0], results, lambda result: result.images_per_second, "images/s")
        if inference:
            _panel(panels[1], results, lambda result: 1000 * (result.latency_seconds or 0.0), "latency, ms a batch")
        _panel(panels[-1], results, lambda result: result.tile_kib, "KiB on the fullest tile")
        _draw_limit(panels[-1], results)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def description(results: Sequence[Result]) -> str:
    """Describe the figure in words."""
    points = [
        f"{result.settings.batch_size}: {result.images_per_second:,.0f} images/s, {result.tile_kib:.0f} KiB"
        f"{'' if result.is_sure_to_fit else f' ({result.verdict})'}"
        for result in results
    ]
    return f"Modelled rate and fullest tile by batch size: {'; '.join(points)}."


def _draw_limit(axes: Axes, results: Sequence[Result]) -> None:
    limit = results[0].tile_limit_kib
    axes.axhline(limit, color=INK, linestyle="--", linewidth=1.2)
    axes.text(0.02, limit, "a tile", va="bottom", fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_ylim(top=1.12 * max(limit, *(result.tile_kib for result in results)))


def _panel(axes: Axes, results: Sequence[Result], value: Callable[[Result], float], label: str) -> None:
    sizes = [result.settings.batch_size for result in results]
    axes.plot(sizes, [value(result) for result in results], color=BLUE, linewidth=2)
    for result in results:
        face, edge = (BLUE, BLUE) if result.is_sure_to_fit else ("white", ORANGE)
        marker = "o" if result.is_sure_to_fit else "s"
        axes.plot([result.settings.batch_size], [value(result)], marker, markersize=6, markerfacecolor=face,
                  markeredgecolor=edge, markeredgewidth=1.5)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set(xlabel="batch size", ylabel=label)
    only_grid(axes)
