"""Compute, synchronise, exchange: the first operations of a program, one row each."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from matplotlib.figure import Figure

from ipu_course.figures.style import AREA_LOOKS, in_style, new_figure, only_grid, rows_named

PARTS = ("compute", "exchange", "synchronise")
ROW_INCHES = 0.32


class Step(NamedTuple):
    """One operation: its name, and the microseconds that a step's three parts take."""

    name: str
    compute: float
    exchange: float
    synchronise: float


def steps_figure(steps: Sequence[Step], title: str) -> Figure:
    """A row for each step: microseconds of computing, exchanging and synchronising, one after another."""
    with in_style():
        figure, axes = new_figure(1.2 + ROW_INCHES * len(steps))
        begun = [0.0] * len(steps)
        for part, look in zip(PARTS, AREA_LOOKS):
            widths = [float(getattr(step, part)) for step in steps]
            axes.barh(range(len(steps)), widths, left=begun, height=0.7, label=part, **look)
            begun = [start + width for start, width in zip(begun, widths)]
        rows_named(axes, [step.name for step in steps])
        axes.set(xlabel="microseconds in one micro-batch", title=title)
        only_grid(axes, "x")
        figure.legend(loc="outside lower center", ncol=len(PARTS), frameon=False)
    return figure
