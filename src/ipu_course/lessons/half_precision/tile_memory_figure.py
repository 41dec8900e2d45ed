"""What the fullest tile of each program holds, as one bar of parts, against what a tile has."""

from __future__ import annotations

from typing import Any, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    ORANGE,
    YELLOW,
    check_lines,
    in_style,
    new_figure,
    only_grid,
    rows_named,
)

BAR_HEIGHT = 0.62
LEAST_WIDTH_FOR_A_NUMBER = 0.035  # of the whole axis: narrower parts would not hold their number
LOOKS: tuple[dict[str, Any], ...] = (
    {"facecolor": BLUE, "edgecolor": "white"},
    {"facecolor": YELLOW, "edgecolor": HATCH, "hatch": "////"},
    {"facecolor": "white", "edgecolor": GREEN, "hatch": "----"},
    {"facecolor": ORANGE, "edgecolor": "white", "hatch": "...."},
    {"facecolor": GREY, "edgecolor": INK},
)
_BEHIND_A_NUMBER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}


def tile_memory_figure(programs: Mapping[str, Mapping[str, float]], limit: float, title: str) -> Figure:
    """A bar for each of ``programs``, made of its parts in KiB (at most 5, the same for all), its sum at the end.

    ``limit`` is drawn as a line across all bars. Raises ``ValueError`` for more parts than looks.
    """
    parts = list(dict.fromkeys(part for each in programs.values() for part in each))
    check_lines(len(parts), len(LOOKS))
    largest = max([limit, *(sum(each.values()) for each in programs.values())])
    with in_style():
        figure, axes = new_figure(1.5 + 0.55 * len(programs))
        starts = dict.fromkeys(programs, 0.0)
        for part, look in zip(parts, LOOKS):
            for row, (program, sizes) in enumerate(programs.items()):
                size = sizes.get(part, 0.0)
                label = part if row == 0 else None
                axes.barh(row, size, left=starts[program], height=BAR_HEIGHT, label=label, **look)
                _write(axes, row, starts[program] + size / 2, size, largest)
                starts[program] += size
        for row, total in enumerate(starts.values()):
            place = total + 0.012 * largest
            sums = axes.text(place, row, f"{total:.0f}", va="center", fontsize=10, fontweight="bold")
            sums.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # above a limit that passes
        axes.axvline(limit, color=INK, linestyle="--", linewidth=1.4)
        axes.text(limit, -0.55, f" a tile has {limit:.0f} KiB", fontsize=9, va="bottom")
        rows_named(axes, list(programs))
        axes.set_xlim(0, 1.1 * largest)
        axes.set(xlabel="KiB on the fullest tile", title=title)
        only_grid(axes, "x")
        figure.legend(loc="outside lower center", ncol=len(parts), frameon=False)
    return figure


def _write(axes: Axes, row: int, middle: float, size: float, largest: float) -> None:
    if size >= LEAST_WIDTH_FOR_A_NUMBER * largest:
        axes.text(middle, row, f"{size:.0f}", ha="center", va="center", fontsize=9, bbox=_BEHIND_A_NUMBER)
