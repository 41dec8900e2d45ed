"""Ideal and achieved throughput of program C over replicas, and which part of a call grows with them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show
from ipu_course.lessons.reading_a_profile.bottleneck_words import MILLISECONDS
from ipu_course.lessons.reading_a_profile.slow_programs import RECORDS_ACCUMULATED, captured_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import ScalingPoint

REPLICAS = (1, 2, 4, 8)
ACCUMULATIONS = (RECORDS_ACCUMULATED, 4 * RECORDS_ACCUMULATED)


@engine.needs_the_model
def scaled_records() -> Mapping[int, Sequence[ScalingPoint]]:
    """Return program C, mended, with 1 to 8 replicas, by accumulation."""
    return _scaled()


@lru_cache(maxsize=1)
def _scaled() -> Mapping[int, Sequence[ScalingPoint]]:
    program = captured_records()
    return {
        count: program.scaling(REPLICAS, optimiser_off_chip=False, gradient_accumulation=count)
        for count in ACCUMULATIONS
    }


@engine.needs_the_model
def efficiency_percentage(scaled: Mapping[int, Sequence[ScalingPoint]]) -> float:
    """Return the percentage of perfect scaling that the most replicas reach with the first accumulation."""
    return 100 * scaled[ACCUMULATIONS[0]][-1].efficiency


def show_replicas(scaled: Mapping[int, Sequence[ScalingPoint]]) -> None:
    """Show ideal and achieved throughput, and the milliseconds of a call by part."""
    if not scaled:
        print(engine.NOT_HERE)
        return
    points = scaled[ACCUMULATIONS[0]]
    told = "; ".join(
        f"accumulation {count}: " + ", ".join(f"{p.efficiency:.0%} with {p.replicas}" for p in each)
        for count, each in scaled.items()
    )
    show.figure(
        efficiency_figure(scaled),
        "The all-reduce is paid once per update, so more micro-batches per update scale better.",
        f"The share of perfect scaling that program C reaches with 1 to 8 replicas, modelled; {told}.",
    )
    show.table([_row(point) for point in points], index="replicas (modelled)")


def efficiency_figure(scaled: Mapping[int, Sequence[ScalingPoint]]) -> Figure:
    """Draw the share of perfect scaling over replicas, a line for each accumulation."""
    lines: dict[str, Sequence[float | None]] = {"ideal": [1.0 for _ in REPLICAS]}
    lines |= {f"achieved, accumulation {count}": [p.efficiency for p in each] for count, each in scaled.items()}
    return figures.curves_figure(
        REPLICAS, lines, "replicas, one IPU each", "achieved / ideal", "Program C over replicas (modelled)",
        log_x=True, percent=True, from_zero=True,
    )  # fmt: skip


def _row(point: ScalingPoint) -> dict[str, object]:
    profile = point.profile
    assert profile is not None
    shares, device = profile.shares, profile.device_seconds_per_call
    parts = {
        "forward and backward": shares["main"],
        "streams": shares["stream"],
        "weight update": shares["update"],
        "all-reduce": shares["collective"],
    }
    return {
        "replicas (modelled)": point.replicas,
        "ideal records/s": f"{point.theoretical_samples_per_second:,.0f}",
        "achieved records/s": f"{point.samples_per_second:,.0f}",
        **{f"{name}, ms": f"{share * device * MILLISECONDS:.2f}" for name, share in parts.items()},
        "a call, ms": f"{profile.call_seconds * MILLISECONDS:.1f}",
    }
