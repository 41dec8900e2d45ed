"""The fullest tile over time, for programs beside each other on one scale: floor, hill and spikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course import engine, show
from ipu_course.figures.looks import ACTIVATIONS, CODE, TEMPORARY
from ipu_course.figures.style import INK, WIDTH_INCHES, in_style, only_grid
from ipu_course.lessons.memory_techniques.choices import KIB

if TYPE_CHECKING:
    from ipu_course.engine import Profile

PARTS = {"always live": CODE, "activations, gradients": ACTIVATIONS, "temporary data": TEMPORARY}


def show_hills(profiles: Mapping[str, Profile], takeaway: str) -> None:
    """Show the fullest tile of each program over time, on one scale; ``takeaway`` is the caption."""
    if any(profile is engine.NOT_MODELLED for profile in profiles.values()):
        print(engine.NOT_HERE)
        return
    told = "; ".join(
        f"{name}: peak {profile.memory.max_tile_bytes / KIB:.0f} KiB in {_peak(profile)}"
        for name, profile in profiles.items()
    )
    show.figure(
        hills_figure(profiles),
        takeaway,
        f"KiB of the fullest tile over a micro-batch and the weight update, modelled. {told}.",
    )


def _peak(profile: Profile) -> str:
    memory = profile.memory[0]
    step = memory.liveness[memory.peak]
    return f"{step.name} ({step.phase})"


def hills_figure(profiles: Mapping[str, Profile]) -> Figure:
    """Return one chart for each program, with the same axis for memory."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.3), layout="constrained")
        charts = figure.subplots(1, len(profiles), sharey=True, squeeze=False)[0]
        top = max(profile.memory.max_tile_bytes for profile in profiles.values()) / KIB
        for axes, (name, profile) in zip(charts, profiles.items()):
            _draw(axes, profile)
            axes.set(title=name, xlabel="what runs, in its order", ylim=(0, 1.1 * top))
        charts[0].set_ylabel("KiB of the fullest tile")
        keys = [Patch(label=name, **look.area()) for name, look in PARTS.items()]
        figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, profile: Profile) -> None:
    memory, limit = profile.memory[0], profile.memory.tile_bytes / KIB
    floor = memory.always_live_bytes / KIB
    live = [floor + (step.bytes_on_tile - step.temporary_bytes) / KIB for step in memory.liveness]
    full = [floor + step.bytes_on_tile / KIB for step in memory.liveness]
    steps = range(len(live))
    zero, floors = [0.0] * len(live), [floor] * len(live)
    for low, high, look in zip((zero, floors, live), (floors, live, full), PARTS.values()):
        axes.fill_between(steps, low, high, step="post", **look.area(0.0))
    axes.axhline(limit, color=INK, linestyle="--", linewidth=1.2)
    axes.text(len(live) - 1, limit + 6, f"a tile: {limit:.0f} KiB", fontsize=9, ha="right", va="bottom")
    axes.set(xlim=(0, len(live) - 1), xticks=[])
    only_grid(axes)
