"""One placement: how long each IPU works for a micro-batch, and how full it is."""

from __future__ import annotations

from typing import Sequence

from matplotlib.figure import Figure

from ipu_course.figures.looks import COMPARED
from ipu_course.figures.style import INK, WIDTH_INCHES, in_style, only_grid

ROW_INCHES = 0.34


def placement_figure(milliseconds: Sequence[float], kib: Sequence[float], limit: float) -> Figure:
    """Draw one row for each IPU: on the left its time for one micro-batch, on the right its fullest tile.

    ``limit`` is a tile's memory in KiB. Raises ``ValueError`` for lists of different lengths.
    """
    if len(milliseconds) != len(kib):
        raise ValueError(f"there are {len(milliseconds)} times and {len(kib)} sizes")
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 1.3 + ROW_INCHES * len(kib)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        rows = range(len(kib))
        for panel, values, form in zip(axes, (milliseconds, kib), ("{:.2f}", "{:.0f}")):
            panel.barh(rows, values, height=0.7, **COMPARED[0].area())
            for row, value in zip(rows, values):
                text = panel.text(value + 0.015 * max(values), row, form.format(value), va="center", fontsize=9)
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            panel.tick_params(axis="y", length=0)
            panel.set_xlim(0, 1.15 * max(values))
            only_grid(panel, "x")
        axes[0].set_yticks(rows, [f"IPU {row}" for row in rows])
        axes[0].set_ylim(len(kib) - 0.4, -1.0)
        axes[1].set_xlim(0, 1.15 * max(limit, *kib))
        axes[1].axvline(limit, color=INK, linestyle="--", linewidth=1.2)
        axes[1].text(limit, -0.55, f"a tile has {limit:.0f} ", fontsize=9, va="bottom", ha="right")
        axes[0].set_xlabel("ms for one micro-batch, forward to backward")
        axes[1].set_xlabel("KiB on the fullest tile")
        figure.suptitle("Your placement (modelled)", x=0.01, ha="left", fontsize=11)
    return figure
