"""The fullest tile over one training step, as a chart: the floor that is always live, and the hill on top of it."""

from __future__ import annotations

from typing import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course.figures.looks import ACTIVATIONS, CODE, OPTIMISER_STATE, TEMPORARY, WEIGHTS, Look
from ipu_course.figures.style import INK, WIDTH_INCHES, in_style, new_figure, only_grid
from ipu_course.tile_over_time import Hill

PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
LEAST_PHASE = 0.05  # of all steps, for its name to have room
TAKING_TURNS = "again and backward"
PHASES = {"forward": "forward", "recompute": "again", "backward": "backward", "update": "update",
          TAKING_TURNS: "computed again, and backward"}  # fmt: skip


def floor_and_hill(hill: Hill, by_hand_kib: float | None = None) -> Figure:
    """Return the chart of floor, hill and spikes; a count by hand is marked at the end of the forward pass."""
    with in_style():
        figure, axes = new_figure(3.7)
        _draw(axes, hill, max(hill.limit, hill.floor + hill.height))
        axes.set_ylabel("KiB of the fullest tile")
        axes.set_xlabel("what runs, in the order in which it runs")
        axes.set_title("The fullest tile over one micro-batch and the weight update (modelled)")
        keys = _keys()
        if by_hand_kib is not None:
            end = sum(phase == "forward" for phase in hill.phases)
            axes.plot(end, hill.floor + by_hand_kib, "D", color="white", markeredgecolor=INK, markersize=7, zorder=5)
            keys.append(axes.plot([], [], "D", color="white", markeredgecolor=INK, label="counted by hand")[0])
        figure.legend(handles=keys, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return figure


def hills_beside(hills: Mapping[str, Hill]) -> Figure:
    """Return one chart of floor, hill and spikes for each named program, side by side on one scale."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.5), layout="constrained")
        charts = figure.subplots(1, len(hills), sharey=True, squeeze=False)[0]
        top = max(max(hill.limit, hill.floor + hill.height) for hill in hills.values())
        for axes, (name, hill) in zip(charts, hills.items()):
            _draw(axes, hill, top)
            axes.set(title=f"{name} (modelled)", xlabel="what runs, in its order")
        charts[0].set_ylabel("KiB of the fullest tile")
        figure.legend(handles=_keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return figure


def _draw(axes: Axes, hill: Hill, highest: float) -> None:
    """Draw a hill on axes that reach a little over ``highest``, in KiB."""
    count = len(hill.live)
    edges = list(range(count + 1))
    live = [hill.floor + each for each in (*hill.live, hill.live[-1])]
    top = [below + each for below, each in zip(live, (*hill.temporary, hill.temporary[-1]))]
    low = 0.0
    for part, look in ((hill.weights, WEIGHTS), (hill.state, OPTIMISER_STATE), (hill.code, CODE)):
        _fill(axes, edges, [low] * (count + 1), [low + part] * (count + 1), look)
        low += part
    _fill(axes, edges, [hill.floor] * (count + 1), live, ACTIVATIONS)
    _fill(axes, edges, live, top, TEMPORARY)
    axes.axhline(hill.limit, color=INK, linestyle="--", linewidth=1.4)
    axes.text(0.008, hill.limit + 6, f"a tile: {hill.limit:.0f} KiB", fontsize=9, va="bottom", bbox=PLATE,
              transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set(xlim=(0, count), ylim=(0, 1.18 * highest))
    _name_phases(axes, hill)
    only_grid(axes)


def _keys() -> list[object]:
    looks = {"weights": WEIGHTS, "optimiser state, accumulators": OPTIMISER_STATE, "code": CODE,
             "live results, gradients": ACTIVATIONS, "temporary data": TEMPORARY}  # fmt: skip
    return [Patch(label=name, **look.area()) for name, look in looks.items()]


def _fill(axes: Axes, edges: Sequence[int], low: Sequence[float], high: Sequence[float], look: Look) -> None:
    axes.fill_between(edges, low, high, step="post", **look.area(0.0))


def _name_phases(axes: Axes, hill: Hill) -> None:
    """Write the name of each phase over its steps, and a line where it begins.

    Where blocks take turns to be computed again and to run backward, both have one name.
    """
    phases = list(hill.phases)
    if sum(pair == ("recompute", "backward") for pair in zip(phases, phases[1:])) > 1:
        phases = [TAKING_TURNS if phase in ("recompute", "backward") else phase for phase in phases]
    start = 0
    for step, phase in enumerate(phases):
        if step + 1 < len(phases) and phases[step + 1] == phase:
            continue
        if step + 1 - start >= LEAST_PHASE * len(phases):
            axes.text((start + step + 1) / 2, 0.94, PHASES[phase], ha="center", fontsize=9,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            axes.axvline(step + 1, color=INK, linestyle=":", linewidth=0.8)
        start = step + 1
