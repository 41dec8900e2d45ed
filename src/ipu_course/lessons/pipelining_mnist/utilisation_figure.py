"""Utilisation of a pipeline over the micro-batches in an update: by time, and counted in steps."""

from __future__ import annotations

from typing import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.board import SMALL, Drawing, chart
from ipu_course.figures.style import INK, LINE_STYLES, check_lines, in_style, only_grid
from ipu_course.schedule import busy_by_steps, busy_by_time

LARGEST = 64


def utilisation(
    stage_counts: Sequence[int] = (4,), largest: int = LARGEST, marked: Sequence[tuple[int, int]] = ()
) -> Drawing:
    """Draw both curves for each number of stages (at most 3): solid by time, dashed counted in steps.

    Lines start at the smallest accumulation that PopTorch accepts and end at ``largest``. ``marked`` are points
    (stages, micro-batches) whose two percentages are written beside them. Raises ``ValueError`` for more stages.
    """
    check_lines(len(stage_counts), len(LINE_STYLES))
    with in_style():
        figure, axes = chart(3.6)
        for stages, (colour, _, marker) in zip(stage_counts, LINE_STYLES):
            counts = range(2 * stages - 1, largest + 1)
            by_time = [busy_by_time(stages, count) for count in counts]
            by_steps = [busy_by_steps(stages, count) for count in counts]
            axes.plot(counts, by_time, color=colour, linewidth=2.4)
            axes.plot(counts, by_steps, color=colour, linewidth=1.8, linestyle="--")
            axes.plot([counts[0]] * 2, [by_time[0], by_steps[0]], marker, color=colour, markersize=6)
            name = f"{stages} IPUs"
            axes.annotate(name, (largest, (by_time[-1] + by_steps[-1]) / 2), (8, 0), textcoords="offset points",
                          annotation_clip=False, va="center", color=colour, fontweight="bold")  # fmt: skip
        for stages, count in marked:
            _mark(axes, stages, count)
        axes.plot([], [], color=INK, linewidth=2.4, label="share of the time (equal stages)")
        axes.plot([], [], color=INK, linewidth=1.8, linestyle="--", label="share of the steps, a lower bound")
        axes.legend(frameon=False, loc="lower right", fontsize=SMALL)
        axes.set(xlim=(0, largest), ylim=(0.45, 1.0), ylabel="an IPU is busy")
        axes.set_xlabel("gradient accumulation (micro-batches in an update)")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        only_grid(axes)
    return Drawing(figure, _words(stage_counts, largest, marked))


def _mark(axes: Axes, stages: int, count: int) -> None:
    for share, shift in ((busy_by_time(stages, count), 6), (busy_by_steps(stages, count), -16)):
        axes.plot(count, share, "D", color=INK, markersize=6, zorder=5)
        axes.annotate(f"{share:.1%}", (count, share), (6, shift), textcoords="offset points", fontsize=SMALL, zorder=6)


def _words(stage_counts: Sequence[int], largest: int, marked: Sequence[tuple[int, int]]) -> str:
    parts = [
        f"{stages} IPUs rise from {busy_by_time(stages, 2 * stages - 1):.1%} of the time "
        f"({busy_by_steps(stages, 2 * stages - 1):.1%} of the steps) with {2 * stages - 1} micro-batches to "
        f"{busy_by_time(stages, largest):.1%} ({busy_by_steps(stages, largest):.1%}) with {largest}"
        for stages in stage_counts
    ]
    parts += [
        f"marked: {stages} IPUs with {count} micro-batches, {busy_by_time(stages, count):.1%} of the time and "
        f"{busy_by_steps(stages, count):.1%} of the steps"
        for stages, count in marked
    ]
    return f"How busy an IPU of a pipeline is, over the gradient accumulation. {'; '.join(parts)}."
