"""The fullest tile over time: the lesson's program, and two forms of it beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.figures.floor_and_hill import floor_and_hill, hills_beside
from ipu_course.tile_over_time import Hill, hill_of

if TYPE_CHECKING:
    from ipu_course.engine import Profile


def peak_in_words(hill: Hill) -> str:
    """Say how full the tile is at its peak, and what runs then."""
    peak = hill.peak
    return (
        f"{hill.floor + hill.height:.0f} KiB at the peak, during {hill.names[peak]} ({hill.phases[peak]}): "
        f"{hill.floor:.0f} always live, {hill.live[peak]:.0f} of results and gradients, {hill.temporary[peak]:.0f} of "
        "temporary data"
    )


def show_hills(profiles: Mapping[str, Profile], takeaway: str) -> None:
    """Show the fullest tile of one program over time, or of several on one scale; ``takeaway`` is the caption."""
    if any(profile is engine.NOT_MODELLED for profile in profiles.values()):
        print(engine.NOT_HERE)
        return
    hills = {name: hill_of(profile) for name, profile in profiles.items()}
    told = "; ".join(f"{name}: {peak_in_words(hill)}" for name, hill in hills.items())
    show.figure(
        hills_beside(hills) if len(hills) > 1 else floor_and_hill(next(iter(hills.values()))),
        takeaway,
        f"KiB of the fullest tile over a micro-batch and the weight update, modelled. {told}. A tile has "
        f"{next(iter(hills.values())).limit:.0f} KiB.",
    )
