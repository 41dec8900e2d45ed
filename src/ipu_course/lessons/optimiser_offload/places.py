"""What it saves and costs to place tensors on the chip or off it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB, MEGA = 1024, 1e6


def show_places(profiles: Mapping[str, Profile], takeaway: str) -> None:
    """Show the fullest tile of every IPU for each of up to three placements, and a table with memory and time."""
    if not all(profiles.values()):
        print(engine.NOT_HERE)
        return
    memories = {name: profile.memory for name, profile in profiles.items()}
    first = next(iter(memories.values()))
    limit = first.tile_bytes / KIB
    kib = {name: [ipu.max_tile_bytes / KIB for ipu in memory] for name, memory in memories.items()}
    words = "; ".join(f"{name}, {' and '.join(f'{size:.0f}' for size in sizes)}" for name, sizes in kib.items())
    show.figure(
        bars_figure(
            [f"IPU {ipu.ipu}" for ipu in first],
            kib,
            "KiB on the fullest tile",
            "How full is the fullest tile? (modelled)",
            form="{:.0f}",
            limit=(limit, f"a tile has {limit:.0f} KiB"),
        ),
        takeaway,
        f"KiB on the fullest tile of IPU 0 and of IPU 1, modelled: {words}. A tile has {limit:.0f} KiB.",
    )
    place_table(profiles)


def place_table(profiles: Mapping[str, Profile]) -> None:
    """Show memory and time of each placement: the fullest tile, the verdict, and what the copies take."""
    if not all(profiles.values()):
        print(engine.NOT_HERE)
        return
    show.table([place_row(name, profile) for name, profile in profiles.items()], index="placement (modelled)")


def place_row(name: str, profile: Profile) -> dict[str, object]:
    """Return the row of one placement."""
    return {
        "placement (modelled)": name,
        "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
        "the model's verdict": engine.memory_verdict(profile),
        "off the chip": f"{profile.memory.off_chip_bytes / MEGA:,.0f} MB",
        "one weight update": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
        "copies' share of the time": f"{profile.shares['offload']:.0%}",
        "images/s, IPUs alone": f"{profile.device_samples_per_second:,.0f}",
    }
