"""Lesson 06's explorer: stages, accumulation and schedule give a chart, the IPUs' utilisation and the stashes."""

from __future__ import annotations

from typing import Callable

from ipu_course.explorers.controls import Choice, Slider
from ipu_course.explorers.explorer import View, explore
from ipu_course.figures.schedule import schedule_figure
from ipu_course.schedule import Schedule, interleaved, pipelined, sharded

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


def explore_pipeline(stages: int = 4, accumulation: int = 10, kind: str = GROUPED) -> None:
    """Show the explorer of schedules; the arguments are its first settings."""
    explore(
        {
            "stages": Slider("stages, one IPU each", STAGES, stages),
            "accumulation": Slider("gradient accumulation", ACCUMULATIONS, accumulation),
            "kind": Choice("schedule", NAMES, kind),
        },
        pipeline_view,
    )


def pipeline_view(stages: int, accumulation: int, kind: str) -> View:
    """The schedule of one weight update, or why PopTorch refuses it."""
    least = 2 * stages - 1
    if kind != SHARDED and accumulation < least:
        return View(
            text=f"PopTorch refuses this: a pipeline of {stages} stages needs a gradient accumulation of at least "
            f"2 x {stages} - 1 = {least}, and this is {accumulation}. Sharded execution has no such minimum."
        )
    schedule = KINDS[kind](stages, accumulation)
    drawn = schedule
    title = f"One weight update, {kind}: {stages} IPUs, {accumulation} micro-batches"
    if kind == SHARDED and accumulation > DRAWN_WHEN_SHARDED:
        drawn = sharded(stages, DRAWN_WHEN_SHARDED)
        title += f" (the first {DRAWN_WHEN_SHARDED} are drawn)"
    rows = [_row(schedule, stage) for stage in range(stages)]
    return View(schedule_figure(drawn, title), description=_words(schedule, kind), rows=rows, text=_summary(schedule))


def _row(schedule: Schedule, stage: int) -> dict[str, object]:
    return {"stage on": f"IPU {stage}", "micro-batches in its stash": schedule.stash(stage)}


def _words(schedule: Schedule, kind: str) -> str:
    steps, steady = schedule.steps, schedule.steady_steps
    said = f"A row for each of {schedule.stages} IPUs, {steps} pipeline steps, {kind} schedule. "
    if kind == SHARDED:
        return said + "One pass at a time: all other IPUs are idle."
    if not steady:
        return said + "No step in which all IPUs do both passes: the pipeline is never full."
    return said + (
        f"Steps 1 to {steady.start}, ramp-up: passes spread from IPU 0 to IPU {schedule.stages - 1} and back. Steps "
        f"{steady.start + 1} to {steady.stop}, steady state: every IPU runs a forward and a backward pass. The last "
        f"{steps - steady.stop}, ramp-down: the passes get fewer. Then the weights are updated."
    )


def _summary(schedule: Schedule) -> str:
    return (
        f"{schedule.steps} pipeline steps. Busy for {schedule.utilisation:.1%} of all half-steps, counted; for "
        f"{schedule.busy_share(BACKWARD):.1%} of the time, if a backward pass takes two forward passes and a half-step "
        "without any pass takes no time."
    )
