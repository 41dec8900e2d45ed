"""What fills the fullest tile, in the four parts that matter here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ipu_course import engine, show
from ipu_course.figures.style import WIDTH_INCHES, in_style
from ipu_course.lessons.optimiser_offload.update_parts_figure import STATE, bars

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024


def kib_by_part(profile: Profile, ipu: int) -> dict[str, float]:
    """Return what fills the fullest tile of one IPU, with the optimiser's state as the last part."""
    parts = {name: size / KIB for name, size in profile.memory[ipu].bytes_by_category.items()}
    weights, accumulators, state = (
        parts.pop(name, 0.0) for name in ("variables", "gradient accumulators", "optimiser state")
    )
    return {"everything else": sum(parts.values()), "weights": weights, "accumulators": accumulators, STATE: state}


def show_parts(profile: Profile) -> None:
    """Show what fills the fullest tile of a program."""
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    fullest = max(range(len(profile.memory)), key=lambda ipu: profile.memory[ipu].max_tile_bytes)
    parts = kib_by_part(profile, fullest)
    needed, limit = sum(parts.values()), profile.memory.tile_bytes / KIB
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 2.4), layout="constrained")
        axes = figure.add_subplot()
        bars(axes, parts, "{:.0f}", f"KiB on IPU {fullest}'s fullest tile")
        axes.set_title(f"The program needs {needed:.0f} KiB, and a tile has {limit:.0f} (modelled)")
    words = ", ".join(f"{name} {kib:.0f}" for name, kib in parts.items())
    show.figure(
        figure,
        f"The optimiser's state is {parts[STATE]:.0f} KiB, {parts[STATE] / needed:.0%} of what the fullest tile needs.",
        f"KiB on IPU {fullest}'s fullest tile, modelled: {words}; {needed:.0f} in all, and a tile has {limit:.0f}.",
    )
