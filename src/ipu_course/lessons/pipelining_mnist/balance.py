"""How evenly the work of a pipeline is shared: the time of each stage, and one cut of a model beside another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure
from ipu_course.figures.looks import BACKWARD, FORWARD, RECOMPUTE
from ipu_course.lessons.pipelining_mnist.balance_figure import balance_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.published import PublishedFigure

__all__ = ["StageTime", "percentage_between", "show_cuts", "show_stages", "stage_times"]

KIB = 1024
WORKSHOP_CUT = 8


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


def show_stages(profile: Profile, names: Sequence[str]) -> None:
    """Show what each stage takes for one micro-batch; ``names`` are those of the stages."""
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    times = stage_times(profile)
    passes = {
        "forward": [1e6 * time.forward for time in times],
        "recomputation": [1e6 * time.again for time in times],
        "backward": [1e6 * time.backward for time in times],
    }
    words = "; ".join(f"{name} {1e6 * time.total:.0f}" for name, time in zip(names, times))
    longest = max(range(len(times)), key=lambda stage: times[stage].total)
    show.figure(
        bars_figure(list(names), passes, "microseconds", "What each stage takes for one micro-batch (modelled)",
                    form="{:.1f}", looks=(FORWARD, RECOMPUTE, BACKWARD)),
        f"The stages are uneven: {names[longest]} takes longest, and the others wait for it.",
        f"Microseconds of forward pass, recomputation and backward pass, modelled; together: {words}.",
    )  # fmt: skip


def show_cuts(profiles: Mapping[int, Profile], published: PublishedFigure) -> None:
    """Show two-stage programs by the block of ``layer3`` at which the second IPU begins.

    ``published`` is the ratio of the two IPUs' times with the workshop's cut. The last but one column has the longer
    stage if IPU 1 were slower by the factor that brings the model to it. The profiles are of calls with one weight
    update.
    """
    if engine.NOT_MODELLED in profiles.values():
        print(engine.NOT_HERE)
        return
    milliseconds = {cut: [1e3 * each.total for each in stage_times(profile)] for cut, profile in profiles.items()}
    kib = {cut: [ipu.max_tile_bytes / KIB for ipu in profile.memory] for cut, profile in profiles.items()}
    slower = published.value / _ratio(profiles[WORKSHOP_CUT])
    if_slower = f"longer stage if IPU 1 takes {slower - 1:.0%} more time"
    limit = next(iter(profiles.values())).memory.tile_bytes / KIB
    names = [f"layer3[{cut}]" for cut in profiles]
    words = "; ".join(
        f"cut before {name}: {first:.1f} and {second:.1f} ms, {here:.0f} and {there:.0f} KiB"
        for name, (first, second), (here, there) in zip(names, milliseconds.values(), kib.values())
    )
    show.figure(
        balance_figure(names, list(milliseconds.values()), list(kib.values()), limit, "Where IPU 1 begins (modelled)"),
        f"The slowest of these cuts takes {percentage_between(profiles):.0f}% longer than the fastest. The model's "
        f"own error is {next(iter(profiles.values())).error_band.high - 1:.0%}: too close to call.",
        f"Time of one micro-batch and fullest tile of IPU 0 and IPU 1, modelled; {words}. A tile has {limit:.0f} KiB.",
    )
    show.table(
        [
            {
                "cut before": f"layer3[{cut}]",
                "weight update": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
                "longer stage": f"{max(milliseconds[cut]):.2f} ms",
                if_slower: f"{_slower(milliseconds[cut], slower):.2f} ms",
                "fullest tile": f"{max(kib[cut]):.0f} KiB",
            }
            for cut, profile in profiles.items()
        ],
        index="cut before",
    )
    print(f"{published.kind}: {published.text} {published.source}")
    print(f"modelled: with the same cut, {_ratio(profiles[WORKSHOP_CUT]):.2f} times as long")


def percentage_between(profiles: Mapping[int, Profile]) -> Any:
    """Return by what percentage the slowest update takes longer than the fastest; ``NOT_MODELLED`` without a model."""
    if engine.NOT_MODELLED in profiles.values():
        return engine.NOT_MODELLED
    updates = [profile.device_seconds_per_call for profile in profiles.values()]
    return 100 * (max(updates) / min(updates) - 1)


def _ratio(profile: Profile) -> float:
    """Return for how long IPU 1 computes, as a share of IPU 0's time: on-tile work, as the trace counts it."""
    first, second = (each.on_tile_execute for each in profile.cycles)
    return second / first


def _slower(milliseconds: Sequence[float], factor: float) -> float:
    return max(milliseconds[0], factor * milliseconds[1])
