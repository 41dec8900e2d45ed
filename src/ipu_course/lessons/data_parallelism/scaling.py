"""How throughput grows with replicas, beside published runs, and what a constant global batch costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.published import published_figure
from ipu_course.published_resnet50 import ACCUMULATION, MICRO_BATCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import ModelledModule, Profile, ScalingPoint

__all__ = ["POD16", "POD64", "PublishedStep", "bottleneck", "show_constant_batch", "show_scaling", "update_share"]

KIB = 1024
EXCHANGE = "global exchange code"
AXIS = "replicas, one IPU each"
REPLICAS = (1, 2, 4, 8, 16, 32, 64)
# The submissions to MLPerf have a process on the host for every two replicas.
REPLICAS_PER_INSTANCE = 2
# What a weight update does once, however many micro-batches it has.
ONCE = ("collective", "update", "fill and flush", "offload", "run start")
BOTTLENECKS = {"host loader": "host, loading", "host call": "host, calls", "stream": "host link"}


@dataclass(frozen=True)
class PublishedStep:
    """The time of one weight update on a machine, derived from a published run."""

    machine: str
    replicas: int
    accumulation: int
    seconds: float

    @property
    def images(self) -> int:
        """The global batch."""
        return self.replicas * self.accumulation * MICRO_BATCH

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def _milliseconds(key: str) -> float:
    return published_figure(Path(__file__).parent, key).value


POD16 = PublishedStep("POD16", 16, ACCUMULATION, _milliseconds("step_16") / 1000)
POD64 = PublishedStep("POD64", 64, 3, _milliseconds("step_64") / 1000)
RUNS = (POD16, POD64)


def bottleneck(profile: Profile) -> str:
    """Return what has to become faster first, in this lesson's words."""
    return BOTTLENECKS.get(profile.limited_by, "IPUs")


def update_share(profile: Profile) -> float:
    """Return the share of the device's time that a weight update takes once: all-reduce, update, start."""
    return sum(profile.shares[name] for name in ONCE)


def show_scaling(program: ModelledModule) -> None:
    """Show images a second of each replica with the accumulations of the published runs, and a table of both."""
    if program is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    lines = {run.accumulation: _points(program, run.accumulation) for run in RUNS}
    described = "; ".join(
        f"accumulation {count}: " + ", ".join(f"{p.replicas}: {p.samples_per_second / p.replicas:,.0f}" for p in points)
        for count, points in lines.items()
    )
    derived = "; ".join(f"{run.machine} {run.rate / run.replicas:,.0f}" for run in RUNS)
    show.figure(
        per_replica_figure(lines),
        "Adding replicas slows each of them down a little. Less accumulation costs more.",
        f"Images a second per replica against replicas, modelled: {described}. Derived from published runs: {derived}.",
    )
    show.table([_row(run, lines[run.accumulation]) for run in RUNS], index="machine")


def _points(program: ModelledModule, accumulation: int, constant: bool = False) -> tuple[ScalingPoint, ...]:
    return program.scaling(
        REPLICAS,
        replicas_per_instance=REPLICAS_PER_INSTANCE,
        constant_global_batch=constant,
        gradient_accumulation=accumulation,
    )


def per_replica_figure(lines: Mapping[int, Sequence[ScalingPoint]]) -> Figure:
    """Draw images a second per replica, a line for each accumulation: a flat line is perfect scaling."""
    drawn = figures.curves_figure(
        REPLICAS,
        {
            f"accumulation {count}, modelled": [point.samples_per_second / point.replicas for point in points]
            for count, points in lines.items()
        },
        AXIS,
        "images a second per replica",
        "What each replica contributes (the axis begins at 1,500)",
        log_x=True,
        marked={
            f"{run.machine}, accumulation {run.accumulation}": (run.replicas, run.rate / run.replicas) for run in RUNS
        },
    )
    axes = drawn.axes[0]
    axes.set_ylim(1_500, 2_150)
    for note in axes.texts:  # below the lines, and left of the last point
        note.set_position((-8, -14))
        note.set_horizontalalignment("right")
    legend = axes.get_legend()
    assert legend is not None
    legend.get_texts()[-1].set_text("derived from published runs")
    return drawn


def _row(run: PublishedStep, points: Sequence[ScalingPoint]) -> dict[str, object]:
    point, alone = points[REPLICAS.index(run.replicas)], points[0]
    profile = point.profile
    assert profile is not None
    code = max(dict(ipu.bytes_by_category).get(EXCHANGE, 0.0) for ipu in profile.memory) / KIB
    return {
        "machine": run.machine,
        "replicas x accumulation": f"{run.replicas} x {run.accumulation}",
        "images a second, one replica alone, modelled": f"{alone.samples_per_second:,.0f}",
        "all replicas, modelled": f"{point.samples_per_second:,.0f}",
        "derived from a published run": f"{round(run.rate, -2):,.0f}",
        "efficiency, modelled": f"{point.efficiency:.1%}",
        "all-reduce, modelled": f"{1e3 * profile.device_seconds_per_call * profile.shares['collective']:.1f} ms",
        "exchange code, modelled": f"{code:.0f} KiB a tile",
    }


def show_constant_batch(program: ModelledModule) -> None:
    """Show the efficiency when replicas share out the batch of the POD64, modelled and from both published runs.

    The published runs give the time m of a micro-batch, and the time u that an update takes once.
    """
    if program is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    micro_batches = POD64.replicas * POD64.accumulation
    m = (POD16.seconds - POD64.seconds) / (POD16.accumulation - POD64.accumulation)
    u = POD16.seconds - POD16.accumulation * m

    def derived(replicas: int) -> float:
        return (micro_batches * m + u) / (replicas * (micro_batches / replicas * m + u))

    grows, stays = (_points(program, micro_batches, constant) for constant in (False, True))
    lines: dict[str, Sequence[float | None]] = {
        "batch grows, modelled": [point.efficiency for point in grows],
        f"{POD64.images:,} images, derived from m and u": [derived(count) for count in REPLICAS],
        f"{POD64.images:,} images, modelled": [point.efficiency for point in stays],
    }
    words = ", ".join(f"{point.replicas}: {point.efficiency:.0%}" for point in stays)
    drawn = figures.curves_figure(
        REPLICAS,
        lines,
        AXIS,
        "efficiency",
        "How near to perfect scaling? (the axis begins at 70 %)",
        log_x=True,
        percent=True,
    )
    drawn.axes[0].set_ylim(0.7, 1.02)
    show.figure(
        drawn,
        "If the global batch may not grow, every doubling of the replicas makes u a larger part of the time.",
        f"Efficiency against replicas. With a growing batch it stays high. At {POD64.images:,} images an update it "
        f"falls, modelled: {words}. Derived from the published runs: {derived(REPLICAS[-1]):.0%} with {REPLICAS[-1]}.",
    )
