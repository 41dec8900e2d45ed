"""How throughput grows with replicas, beside published runs."""

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

__all__ = ["POD16", "POD64", "PublishedStep", "bottleneck", "show_scaling", "update_share"]

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
        """Images per second."""
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
    """Show images per second of each replica with the accumulations of the published runs, and a table of both."""
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
        f"Images per second of each replica against replicas, modelled: {described}. Derived from published runs: "
        f"{derived}.",
    )
    show.table([_row(run, lines[run.accumulation]) for run in RUNS], index="machine")


def _points(program: ModelledModule, accumulation: int) -> tuple[ScalingPoint, ...]:
    return program.scaling(REPLICAS, replicas_per_instance=REPLICAS_PER_INSTANCE, gradient_accumulation=accumulation)


def per_replica_figure(lines: Mapping[int, Sequence[ScalingPoint]]) -> Figure:
    """Draw images per second per replica, a line for each accumulation: a flat line is perfect scaling."""
    drawn = figures.curves_figure(
        REPLICAS,
        {
            f"accumulation {count}, modelled": [point.samples_per_second / point.replicas for point in points]
            for count, points in lines.items()
        },
        AXIS,
        "images/s per replica",
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
    return {
        "machine": run.machine,
        "replicas x accumulation": f"{run.replicas} x {run.accumulation}",
        "images/s, one replica alone, modelled": f"{alone.samples_per_second:,.0f}",
        "all replicas, modelled": f"{point.samples_per_second:,.0f}",
        "derived from a published run": f"{round(run.rate, -2):,.0f}",
        "efficiency, modelled": f"{point.efficiency:.1%}",
        "all-reduce, modelled": f"{1e3 * profile.device_seconds_per_call * profile.shares['collective']:.1f} ms",
    }
