"""What two schedules of one pipeline keep of several micro-batches, counted and modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

__all__ = ["show_schedules"]

KIB = 1024
STASHES = "stashes"
SCHEDULES = {"grouped": "pipelined", "interleaved": "interleaved"}


def show_schedules(modelled: ModelledModule) -> None:
    """Show a full-size pipeline in both schedules, with and without computing activations again."""
    if modelled is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    found = {
        f"{name}, {words}": modelled.profile(execution=how, recomputation=again)
        for again, words in (("none", "all activations kept"), ("pipeline", "computed again"))
        for name, how in SCHEDULES.items()
    }
    stash = [_kib(profile, STASHES) for profile in found.values()]
    rest = [ipu.max_tile_bytes / KIB - kept for ipu, kept in zip((p.memory[0] for p in found.values()), stash)]
    limit = next(iter(found.values())).memory.tile_bytes / KIB
    words = "; ".join(f"{name}: {kept:.0f} and {other:.0f}" for name, kept, other in zip(found, stash, rest))
    show.figure(
        bars_figure(
            list(found),
            {"stash": stash, "everything else": rest},
            "KiB on the fullest tile of IPU 0",
            "Two schedules, and what is kept for the backward pass (modelled)",
            form="{:.0f}",
        ),
        "Recomputation, not the schedule, makes this pipeline fit.",
        f"KiB of stash and of everything else on the fullest tile of IPU 0, modelled: {words}. A tile has "
        f"{limit:.0f} KiB.",
    )
    show.table([_row(name, profile) for name, profile in found.items()], index="schedule")


def _row(name: str, profile: Profile) -> dict[str, object]:
    return {
        "schedule": name,
        "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
        "fits": engine.fits_in_a_word(profile),
        "weight update every": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
    }


def _kib(profile: Profile, category: str) -> float:
    return profile.memory[0].bytes_by_category.get(category, 0.0) / KIB
