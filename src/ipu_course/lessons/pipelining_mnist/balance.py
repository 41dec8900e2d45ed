"""How evenly the work of a pipeline is shared: the time of each stage, and one cut of a model beside another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure
from ipu_course.lessons.pipelining_mnist.balance_figure import balance_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

__all__ = ["StageTime", "fastest_cut", "show_cuts", "show_stages", "stage_times"]

KIB = 1024


@dataclass(frozen=True)
class StageTime:
    """What one stage takes for one micro-batch, in seconds; ``again`` is the forward pass that is computed again."""

    stage: int
    forward: float
    again: float
    backward: float

    @property
    def total(self) -> float:
        """All passes together: what the stage does in a step of the steady state."""
        return self.forward + self.again + self.backward


def stage_times(profile: Profile) -> tuple[StageTime, ...]:
    """The modelled times of every stage, in order, from the passes on a profile's timeline."""
    found: dict[int, dict[str, float]] = {}
    for span in profile.timeline:
        if span.stage is not None:
            found.setdefault(span.stage, {}).setdefault(span.kind, span.seconds / span.repeats)
    return tuple(
        StageTime(stage, kinds.get("forward", 0.0), kinds.get("recompute", 0.0), kinds.get("backward", 0.0))
        for stage, kinds in sorted(found.items())
    )


def show_stages(profile: Profile | None, names: Sequence[str]) -> None:
    """Show what each stage takes for one micro-batch, and its share of the longest stage; ``names`` are theirs."""
    if not profile:
        print(engine.NOT_HERE)
        return
    times = stage_times(profile)
    passes = {
        "forward": [1e6 * time.forward for time in times],
        "forward again": [1e6 * time.again for time in times],
        "backward": [1e6 * time.backward for time in times],
    }
    title = "What each stage takes for one micro-batch (modelled)"
    words = "; ".join(f"{name} {1e6 * time.total:.0f}" for name, time in zip(names, times))
    show.figure(
        bars_figure(list(names), passes, "microseconds", title, form="{:.1f}"),
        f"Microseconds of forward pass, forward pass computed again and backward pass, modelled; together: {words}.",
    )
    longest = max(time.total for time in times)
    show.table([
        {"stage": name, "all passes": f"{1e6 * time.total:.0f} us", "of the longest": f"{time.total / longest:.0%}"}
        for name, time in zip(names, times)
    ])  # fmt: skip


def show_cuts(profiles: Mapping[str, Profile | None]) -> None:
    """Show two-stage programs that differ in their cut: time and memory of both IPUs, and time of an update.

    The profiles are of calls with one weight update.
    """
    cuts = {name: profile for name, profile in profiles.items() if profile}
    if not cuts:
        print(engine.NOT_HERE)
        return
    times = [[1e3 * time.total for time in stage_times(profile)] for profile in cuts.values()]
    kib = [[ipu.max_tile_bytes / KIB for ipu in profile.memory] for profile in cuts.values()]
    limit = next(iter(cuts.values())).memory.tile_bytes / KIB
    words = "; ".join(
        f"cut before {name}: {first:.1f} and {second:.1f} ms, {here:.0f} and {there:.0f} KiB"
        for name, (first, second), (here, there) in zip(cuts, times, kib)
    )
    show.figure(
        balance_figure(list(cuts), times, kib, limit, "Where the second IPU begins (modelled)"),
        f"Time of one micro-batch and fullest tile of IPU 0 and IPU 1, modelled; {words}. A tile has {limit:.0f} KiB.",
    )
    show.table(
        [_cut_row(name, profile, time) for (name, profile), time in zip(cuts.items(), times)], index="cut before"
    )


def _cut_row(name: str, profile: Profile, milliseconds: Sequence[float]) -> dict[str, object]:
    return {
        "cut before": name,
        "slower stage": f"IPU {milliseconds.index(max(milliseconds))}",
        "weight update every": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
        "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
        "fits": engine.fits_in_a_word(profile),
    }


def fastest_cut(profiles: Mapping[int, Profile | None]) -> int | None:
    """The cut whose program takes the least time of those that fit; ``None`` without profiles."""
    fitting = {cut: profile.device_seconds_per_call for cut, profile in profiles.items() if profile and profile.fits}
    return min(fitting, key=lambda cut: fitting[cut], default=None)
