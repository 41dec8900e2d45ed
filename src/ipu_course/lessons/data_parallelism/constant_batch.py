"""Accumulation against replicas at a constant global batch: the model beside Amdahl's law of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, figures, show
from ipu_course.lessons.data_parallelism.scaling import REPLICAS, update_share

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, ScalingPoint

__all__ = ["UpdateFit", "show_constant_batch"]


class UpdateFit:
    """Seconds ``m`` of a micro-batch and ``u`` of the rest of an update, from two runs with other accumulations.

    A run is (micro-batches of an update, seconds of an update). Raises ``ValueError`` for two runs with as many.
    """

    def __init__(self, one: tuple[int, float], other: tuple[int, float]) -> None:
        if one[0] == other[0]:
            raise ValueError(f"both runs have {one[0]} micro-batches an update: m and u cannot be told apart")
        self.m = (other[1] - one[1]) / (other[0] - one[0])
        self.u = one[1] - one[0] * self.m

    def seconds(self, micro_batches: int) -> float:
        """Seconds of an update of so many micro-batches."""
        return micro_batches * self.m + self.u

    def efficiency(self, replicas: int, micro_batches: int) -> float:
        """Amdahl's law: speed-up by replicas that share ``micro_batches``, for each of them; 1 is perfect."""
        constant = self.u / self.seconds(micro_batches)
        return 1 / (constant * replicas + (1 - constant))


def show_constant_batch(
    program: ModelledModule | None, replicas: Sequence[int], accumulation: int, fit: UpdateFit | None
) -> None:
    """Show the efficiency when one replica's micro-batches are shared out, beside Amdahl's law and a growing batch."""
    if not program or fit is None:
        print(engine.NOT_HERE)
        return
    grows = program.scaling(replicas, gradient_accumulation=accumulation)
    stays = program.scaling(replicas, gradient_accumulation=accumulation, constant_global_batch=True)
    law: list[float | None] = [fit.efficiency(count, accumulation) for count in replicas]
    lines = {
        "batch grows": _efficiencies(grows),
        "batch stays: Amdahl's law": law,
        "batch stays: modelled": _efficiencies(stays),
    }
    words = ", ".join(f"{p.replicas}: {p.efficiency:.0%}" for p in stays if p.profile)
    show.figure(
        figures.curves_figure(
            replicas, lines, REPLICAS, "efficiency", "Of perfect scaling (modelled)", log_x=True, percent=True,
            from_zero=True,
        ),
        f"Efficiency against replicas. With a growing batch it stays high; with a constant one, modelled and Amdahl's "
        f"law fall together. Modelled at a constant global batch, {words}.",
    )  # fmt: skip
    show.table([
        {"replicas": point.replicas, "accumulation": point.accumulation,
         "images a second": f"{point.samples_per_second:,.0f}", "efficiency": f"{point.efficiency:.0%}",
         "Amdahl's law": f"{value:.0%}", "once an update": f"{update_share(point.profile):.0%}"}
        for point, value in zip(stays, law) if point.profile
    ], index="replicas")  # fmt: skip


def _efficiencies(points: Sequence[ScalingPoint]) -> list[float | None]:
    return [point.efficiency if point.profile else None for point in points]
