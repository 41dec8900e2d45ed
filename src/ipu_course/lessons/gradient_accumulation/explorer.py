"""Lesson 02's explorer: the timeline of one weight update, and what accumulation does to rate, memory and updates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, ladder
from ipu_course.explorers.controls import Choice, Slider, Switch
from ipu_course.explorers.explorer import View, explore
from ipu_course.figures.schedule import schedule_figure
from ipu_course.ladder import published_ladder
from ipu_course.schedule import Schedule, pipelined, sharded

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

STAGES = 2
ACCUMULATIONS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)
PIPELINED, SHARDED = "pipelined", "sharded"
STRATEGIES = {"pipelined: both IPUs at once": PIPELINED, "sharded: one IPU at a time": SHARDED}
KIB = 1024
COUNTED = "Counted, without times: there is no IPU Model here."
MOST_DRAWN = 12  # more of the same would only get smaller, and slower to draw


def explore_accumulation(modelled: ModelledModule | None, accumulation: int = 8) -> None:
    """Show the explorer of the hands-on's program; without an IPU Model it shows the schedule instead of times."""
    explore(
        {
            "accumulation": Slider("gradient accumulation", ACCUMULATIONS, accumulation),
            "strategy": Choice("execution", STRATEGIES, PIPELINED),
            "with_loader": Switch("the hands-on's host loads the images", False),
        },
        partial(accumulation_view, modelled),
    )


def accumulation_view(modelled: ModelledModule | None, accumulation: int, strategy: str, with_loader: bool) -> View:
    """One weight update of the hands-on's program, or why PopTorch refuses it."""
    least = 2 * STAGES - 1
    if strategy == PIPELINED and accumulation < least:
        return View(
            text=f"PopTorch refuses this: a pipeline of {STAGES} stages needs a gradient accumulation of at least "
            f"2 x {STAGES} - 1 = {least}, and this is {accumulation}. Sharded execution has no such minimum."
        )
    rows: dict[str, object] = {
        "accumulation": accumulation,
        "images in an update": f"{ladder.MICRO_BATCH * accumulation:,}",
        "updates in an epoch": f"{_updates(accumulation):,}",
        "utilisation, counted in steps": f"{_schedule(accumulation, strategy).utilisation:.1%}",
    }
    if not modelled:
        return _counted_view(accumulation, strategy, rows)
    host = ladder.host() if with_loader else None
    profile = modelled.profile(host=host, gradient_accumulation=accumulation, execution=strategy)
    drawn, words = engine.figure("timeline", profile)
    cells = [{**rows, **_modelled_cells(profile)}]
    return View(drawn, description=f"{words[:-1]} (modelled).", rows=cells, text=_summary(profile))


def _counted_view(accumulation: int, strategy: str, rows: Mapping[str, object]) -> View:
    """What can be counted without an IPU Model."""
    drawn = min(accumulation, MOST_DRAWN)
    schedule = _schedule(drawn, strategy)
    title = f"Schedule of one weight update, {strategy}: {STAGES} IPUs, {accumulation} micro-batches"
    if drawn < accumulation:
        title += f" ({drawn} are drawn)"
    words = (
        f"A row for each of {STAGES} IPUs, {schedule.steps} pipeline steps for {drawn} micro-batches, "
        "then the weight update."
    )
    return View(schedule_figure(schedule, title), description=words, rows=[rows], text=COUNTED)


def _schedule(micro_batches: int, strategy: str) -> Schedule:
    return pipelined(STAGES, micro_batches) if strategy == PIPELINED else sharded(STAGES, micro_batches)


def _updates(accumulation: int) -> int:
    return published_ladder().training_images // (ladder.MICRO_BATCH * accumulation)


def _modelled_cells(profile: Profile) -> dict[str, object]:
    return {
        "images a second, IPUs alone": f"{profile.device_samples_per_second:,.0f}",
        "share of the weight update": f"{profile.shares['update']:.1%}",
        "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
        "epoch": f"{ladder.epoch_seconds(profile) or 0:.1f} s",
    }


def _summary(profile: Profile) -> str:
    return f"Modelled. What limits this program: {profile.limited_by}."
