"""The fullest tile over one training step, as a chart: the floor that is always live, and the hill on top of it."""

from __future__ import annotations

from typing import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course.figures.looks import ACTIVATIONS, CODE, OPTIMISER_STATE, TEMPORARY, WEIGHTS, Look
from ipu_course.figures.style import INK, in_style, new_figure, only_grid
from ipu_course.tile_over_time import Hill

PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
LEAST_PHASE = 0.05  # of all steps, for its name to have room
PHASES = {"forward": "forward", "recompute": "again", "backward": "backward", "update": "update"}


def floor_and_hill(hill: Hill, by_hand_kib: float | None = None) -> Figure:
    """Return the chart of floor, hill and spikes; a count by hand is marked at the end of the forward pass."""
    count = len(hill.live)
    edges = list(range(count + 1))
    live = [hill.floor + each for each in (*hill.live, hill.live[-1])]
    top = [below + each for below, each in zip(live, (*hill.temporary, hill.temporary[-1]))]
    with in_style():
        figure, axes = new_figure(3.7)
        low = 0.0
        for part, look in ((hill.weights, WEIGHTS), (hill.state, OPTIMISER_STATE), (hill.code, CODE)):
            _fill(axes, edges, [low] * (count + 1), [low + part] * (count + 1), look)
            low += part
        _fill(axes, edges, [hill.floor] * (count + 1), live, ACTIVATIONS)
        _fill(axes, edges, live, top, TEMPORARY)
        axes.axhline(hill.limit, color=INK, linestyle="--", linewidth=1.4)
        axes.text(0.008, hill.limit + 6, f"a tile: {hill.limit:.0f} KiB", fontsize=9, va="bottom", bbox=PLATE,
                  transform=axes.get_yaxis_transform())  # fmt: skip
        if by_hand_kib is not None:
            end = sum(phase == "forward" for phase in hill.phases)
            axes.plot(end, hill.floor + by_hand_kib, "D", color="white", markeredgecolor=INK, markersize=7, zorder=5)
        axes.set(xlim=(0, count), ylim=(0, 1.18 * max(hill.limit, *top)), ylabel="KiB of the fullest tile")
        _name_phases(axes, hill)
        axes.set_xlabel("what runs, in the order in which it runs")
        axes.set_title("The fullest tile over one micro-batch and the weight update (modelled)")
        looks = {"weights": WEIGHTS, "optimiser state, accumulators": OPTIMISER_STATE, "code": CODE,
                 "live results, gradients": ACTIVATIONS, "temporary data": TEMPORARY}  # fmt: skip
        keys: list[object] = [Patch(label=name, **look.area()) for name, look in looks.items()]
        if by_hand_kib is not None:
            keys.append(axes.plot([], [], "D", color="white", markeredgecolor=INK, label="counted by hand")[0])
        figure.legend(handles=keys, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
        only_grid(axes)
    return figure


def _fill(axes: Axes, edges: Sequence[int], low: Sequence[float], high: Sequence[float], look: Look) -> None:
    axes.fill_between(edges, low, high, step="post", **look.area(0.0))


def _name_phases(axes: Axes, hill: Hill) -> None:
    """Write the name of each phase over its steps, and a line where it begins."""
    start = 0
    for step, phase in enumerate(hill.phases):
        if step + 1 < len(hill.phases) and hill.phases[step + 1] == phase:
            continue
        if step + 1 - start >= LEAST_PHASE * len(hill.phases):
            axes.text((start + step + 1) / 2, 0.94, PHASES[phase], ha="center", fontsize=9,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            axes.axvline(step + 1, color=INK, linestyle=":", linewidth=0.8)
        start = step + 1
