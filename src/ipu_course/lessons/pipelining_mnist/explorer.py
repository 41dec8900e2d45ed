"""Lesson 06's explorer: stages, accumulation and schedule give a chart, the IPUs' utilisation and the stashes."""

from __future__ import annotations

from typing import Callable

from ipu_course import figures
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.schedule import PassTimes, Schedule, interleaved, pipelined, sharded

STAGES = (2, 4, 8)
ACCUMULATIONS = (2, 3, 6, 7, 10, 15, 20)
GROUPED, INTERLEAVED, SHARDED = "grouped", "interleaved", "sharded"
KINDS: dict[str, Callable[[int, int], Schedule]] = {
    GROUPED: pipelined,
    INTERLEAVED: interleaved,
    SHARDED: sharded,
}
NAMES = {
    "pipelined: grouped (PopTorch's)": GROUPED,
    "pipelined: interleaved (not in PopTorch)": INTERLEAVED,
    "sharded: one IPU at a time": SHARDED,
}
DRAWN_WHEN_SHARDED = 2  # more of the same would only get smaller
BACKWARD = 2.0  # what a backward pass usually takes, in forward passes: gradients of inputs and of weights


def schedule_view(stages: int, accumulation: int, kind: str) -> View:
    """Return the schedule of one weight update, or why PopTorch refuses it."""
    least = 2 * stages - 1
    if kind != SHARDED and accumulation < least:
        return View(
            text=f"PopTorch refuses this: a pipeline of {stages} stages needs a gradient accumulation of at least "
            f"2 x {stages} - 1 = {least}, and this is {accumulation}. Sharded execution has no such minimum."
        )
    schedule = KINDS[kind](stages, accumulation)
    drawn = sharded(stages, min(accumulation, DRAWN_WHEN_SHARDED)) if kind == SHARDED else schedule
    title = f"One weight update, {kind}: {stages} IPUs, {accumulation} micro-batches"
    if drawn.micro_batches < accumulation:
        title += f" (the first {drawn.micro_batches} are drawn)"
    picture = figures.schedule(drawn, PassTimes(backward=BACKWARD), title=title)
    busy = schedule.busy_share(BACKWARD)
    rows = [
        {"stage on": f"IPU {stage}", "micro-batches in its stash": schedule.stash(stage)} for stage in range(stages)
    ]
    return View(
        picture.figure,
        f"An IPU is busy for {busy:.1%} of the time.",
        picture.description,
        rows,
        f"The update takes {schedule.steps} pipeline steps. If a backward pass takes as long as two forward passes, an "
        f"IPU is busy for {busy:.1%} of the time; counted in steps, it is {schedule.utilisation:.1%}.",
    )


SCHEDULES = Explorer(
    controls={
        "stages": Slider("stages, one IPU each", STAGES, 4),
        "accumulation": Slider("gradient accumulation", ACCUMULATIONS, 10),
        "kind": Choice("schedule", NAMES, GROUPED),
    },
    view=schedule_view,
)
