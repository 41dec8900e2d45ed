"""Utilisation of a pipeline against gradient accumulation."""

from __future__ import annotations

from typing import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_course.figures.style import INK, LINE_STYLES, check_lines, in_style, new_figure, only_grid

NOTE_HEIGHT = 0.43


def utilisation_figure(stage_counts: Sequence[int], largest: int, marked: tuple[int, int]) -> Figure:
    """Utilisation of a pipeline against gradient accumulation, one line for each number of IPUs (at most 3).

    Each line starts at the smallest accumulation that PopTorch accepts and ends at ``largest``; ``marked`` is
    the point (IPUs, accumulation) that gets a label. Raises ``ValueError`` for more lines than styles.
    """
    check_lines(len(stage_counts), len(LINE_STYLES))
    with in_style():
        figure, axes = new_figure(3.3)
        for stages, style in zip(stage_counts, LINE_STYLES):
            _draw_utilisation(axes, stages, largest, style)
        _mark_point(axes, *marked)
        axes.text(
            largest - 0.5,
            NOTE_HEIGHT,
            "each line starts at 2N - 1, the smallest that PopTorch accepts",
            ha="right",
        )
        axes.set(xlim=(0, largest), ylim=(0.4, 1.0), ylabel="utilisation")
        axes.set_xlabel("gradient accumulation (micro-batches per weight update)")
        axes.set_title("Longer pipelines need more micro-batches to stay busy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        only_grid(axes)
    return figure


def _draw_utilisation(axes: Axes, stages: int, largest: int, style: tuple[str, str, str]) -> None:
    colour, dashes, marker = style
    counts = range(2 * stages - 1, largest + 1)
    shares = [_utilisation(stages, count) for count in counts]
    axes.plot(counts, shares, color=colour, linestyle=dashes, linewidth=2)
    axes.plot(counts[0], shares[0], marker, color=colour, markersize=7)
    axes.annotate(
        f"{stages} IPUs",
        (largest, shares[-1]),
        (6, 0),
        textcoords="offset points",
        annotation_clip=False,
        va="center",
        color=colour,
        fontweight="bold",
    )


def _mark_point(axes: Axes, stages: int, count: int) -> None:
    share = _utilisation(stages, count)
    axes.plot(count, share, "D", color=INK, markersize=6)
    text = f"{stages} IPUs, {count} micro-batches: {100 * share:.1f} %"
    axes.annotate(text, (count, share), (count, NOTE_HEIGHT), ha="center", arrowprops={"arrowstyle": "-"})


def _utilisation(stages: int, micro_batches: int) -> float:
    return micro_batches / (micro_batches + 2 * (stages - 1))
