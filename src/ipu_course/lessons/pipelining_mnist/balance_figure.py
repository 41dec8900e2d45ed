"""Two stages, cut in several places: how long each takes, and how full its IPU is."""

from __future__ import annotations

from typing import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures.looks import COMPARED
from ipu_course.figures.style import INK, WIDTH_INCHES, in_style, only_grid

BAR = 0.38
ROW_INCHES = 0.52


def balance_figure(
    cuts: Sequence[str],
    milliseconds: Sequence[Sequence[float]],
    kib: Sequence[Sequence[float]],
    limit: float,
    title: str,
) -> Figure:
    """Bars for each of ``cuts``: on the left each IPU's time for one micro-batch, on the right its fullest tile.

    ``milliseconds`` and ``kib`` have a pair of values for each cut, IPU 0's and IPU 1's; ``limit`` is a tile's
    memory in KiB. Raises ``ValueError`` for other lengths and for more than two IPUs.
    """
    for rows in (milliseconds, kib):
        if len(rows) != len(cuts) or any(len(row) != 2 for row in rows):
            raise ValueError(f"each of the {len(cuts)} cuts needs a value for IPU 0 and one for IPU 1")
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 1.3 + ROW_INCHES * len(cuts)), layout="constrained")
        times, memory = figure.subplots(1, 2, sharey=True)
        _bars(times, milliseconds, "{:.1f}")
        _bars(memory, kib, "{:.0f}")
        memory.axvline(limit, color=INK, linestyle="--", linewidth=1.2)
        memory.text(limit, -0.62, f"a tile has {limit:.0f} ", fontsize=9, va="bottom", ha="right")
        times.set_yticks(range(len(cuts)), list(cuts))
        times.set_ylim(len(cuts) - 0.5, -0.95)
        times.set_xlabel("ms for one micro-batch, forward to backward")
        memory.set_xlabel("KiB on the fullest tile")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        handles, labels = times.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=2, frameon=False)
    return figure


def _bars(axes: Axes, rows: Sequence[Sequence[float]], form: str) -> None:
    largest = max(max(row) for row in rows)
    for ipu in (0, 1):
        places = [row + (ipu - 0.5) * BAR for row in range(len(rows))]
        values = [row[ipu] for row in rows]
        axes.barh(places, values, height=0.92 * BAR, label=f"IPU {ipu}", **COMPARED[ipu].area())
        for place, value in zip(places, values):
            text = axes.text(value + 0.015 * largest, place, form.format(value), va="center", fontsize=9)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # above a line that passes
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.15 * largest)
    only_grid(axes, "x")
