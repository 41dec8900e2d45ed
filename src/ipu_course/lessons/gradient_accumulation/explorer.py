"""Lesson 02's explorer: the timeline of one weight update, and what accumulation does to rate, memory and updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine, ladder
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.lessons.gradient_accumulation.exercises import highest_rate

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

STAGES = 2
# Without 16 in the text, exercise 3 can only be answered by moving the slider.
ACCUMULATIONS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 20, 24, 32, 64, 128)
PIPELINED, SHARDED = "pipelined", "sharded"
STRATEGIES = {"pipelined: both IPUs at once": PIPELINED, "sharded: one IPU at a time": SHARDED}
KIB = 1024


def accumulation_view(modelled: ModelledModule, accumulation: int, strategy: str) -> View:
    """Show one weight update of the workshop's program, or why PopTorch refuses it."""
    least = 2 * STAGES - 1
    if strategy == PIPELINED and accumulation < least:
        return View(
            text=f"PopTorch refuses this: a pipeline of {STAGES} stages needs a gradient accumulation of at least "
            f"2 x {STAGES} - 1 = {least}, and this is {accumulation}. Sharded execution has no such minimum."
        )
    profile = modelled.profile(gradient_accumulation=accumulation, execution=strategy)
    drawn, words = engine.figure("timeline", profile)
    waits = " and ".join(f"IPU {ipu} waits for {share:.0%}" for ipu, share in enumerate(waiting_shares(profile)))
    row: dict[str, object] = {
        "accumulation": accumulation,
        "images per update": f"{ladder.MICRO_BATCH * accumulation:,}",
        "updates per epoch": f"{ladder.published_ladder().training_images // (ladder.MICRO_BATCH * accumulation):,}",
        "images per second, IPUs alone": f"{profile.device_samples_per_second:,.0f}",
        "percentage of the highest rate": f"{profile.device_samples_per_second / highest_rate(modelled):.1%}",
        "time for the weight update": f"{profile.shares['update']:.1%}",
        "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
    }
    return View(
        drawn,
        takeaway=f"{waits} of the time of one update (modelled).",
        description=f"{words[:-1]} (modelled)." if words.endswith(".") else f"{words} (modelled).",
        rows=[row],
        text=f"Modelled. The bottleneck of the program: {profile.limited_by}.",
    )


def waiting_shares(profile: Profile) -> tuple[float, ...]:
    """Return the share of a call's device time in which each IPU waits for the other or for the host."""
    waits = [
        sum(span.seconds for span in profile.timeline if span.ipu == ipu and span.kind == "wait")
        for ipu in range(len(profile.cycles))
    ]
    return tuple(seconds / profile.device_seconds_per_call for seconds in waits)


ACCUMULATION = Explorer(
    controls={
        "accumulation": Slider("gradient accumulation", ACCUMULATIONS, 8),
        "strategy": Choice("execution", STRATEGIES, PIPELINED),
    },
    view=accumulation_view,
)
