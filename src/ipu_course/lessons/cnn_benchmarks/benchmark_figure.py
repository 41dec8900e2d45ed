"""Figures of benchmark tables: throughput over batch sizes, throughput against latency, one batch in parts."""

from __future__ import annotations

from typing import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures.style import (
    AREA_LOOKS,
    BLUE,
    INK,
    LINE_STYLES,
    WIDTH_INCHES,
    check_lines,
    in_style,
    new_figure,
    only_grid,
)

HEIGHT_INCHES = 3.4
ROW_INCHES = 0.36


def throughput_figure(
    batches: Sequence[int], rates: Sequence[float], bands: Sequence[tuple[float, float]], title: str
) -> Figure:
    """Images a second over batch sizes; ``bands`` are the lowest and highest rate for each, drawn as an area."""
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        low, high = [band[0] for band in bands], [band[1] for band in bands]
        axes.fill_between(batches, low, high, color=BLUE, alpha=0.18, linewidth=0, label="error band")
        axes.plot(batches, rates, color=BLUE, marker="o", linewidth=2, markersize=5, label="modelled")
        axes.set_xticks(list(batches), [str(batch) for batch in batches])
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="batch size", ylabel="images a second", title=title)
        only_grid(axes)
        axes.legend(frameon=False, loc="lower right")
    return figure


def latency_figure(
    curves: Mapping[str, Sequence[tuple[int, float, float]]], budget_ms: float | None, title: str
) -> Figure:
    """Images a second against the latency in ms: for each of ``curves`` points (batch, ms, images/s).

    Each point is named by its batch; ``budget_ms`` is a line across. Raises ``ValueError`` for more curves than
    styles.
    """
    check_lines(len(curves), len(LINE_STYLES))
    with in_style():
        figure, axes = new_figure(HEIGHT_INCHES)
        for (name, points), (colour, dashes, marker) in zip(curves.items(), LINE_STYLES):
            times, rates = [point[1] for point in points], [point[2] for point in points]
            axes.plot(times, rates, color=colour, linestyle=dashes, marker=marker, linewidth=2, label=name)
            for batch, milliseconds, rate in points:
                axes.annotate(str(batch), (milliseconds, rate), (6, -12), textcoords="offset points", fontsize=9)
        if budget_ms is not None:
            axes.axvline(budget_ms, color=INK, linestyle="--", linewidth=1.2)
            axes.annotate(
                f" {budget_ms:g} ms", (budget_ms, 0), (2, 6), textcoords="offset points", fontsize=9, color=INK
            )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="latency of one batch, ms", ylabel="images a second", title=title)
        only_grid(axes)
        if len(curves) > 1:
            axes.legend(frameon=False, loc="best")
    return figure


def one_batch_figure(milliseconds: Mapping[str, float], kib: float, limit_kib: float, title: str) -> Figure:
    """Bars on the left for the parts of one batch's latency in ms, on the right the fullest tile beside its limit."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * len(milliseconds)), layout="constrained")
        time, memory = figure.subplots(1, 2)
        _bars(time, milliseconds, "{:.2f}", 1.15 * max([*milliseconds.values(), 1e-9]))
        time.set_xlabel("ms of one batch's latency")
        _bars(memory, {"fullest tile": kib}, "{:.0f}", 1.2 * max(kib, limit_kib))
        memory.axvline(limit_kib, color=INK, linestyle="--", linewidth=1.2)
        memory.text(limit_kib, -0.46, f" {limit_kib:.0f}", fontsize=9, va="top")
        memory.set_xlabel("KiB")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _bars(axes: Axes, parts: Mapping[str, float], form: str, right: float) -> None:
    for row, value in enumerate(parts.values()):
        axes.barh(row, value, height=0.6, **AREA_LOOKS[0])
        axes.text(value + 0.01 * right, row, form.format(value), va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(0, right)
    axes.tick_params(axis="y", length=0)
    only_grid(axes, "x")
