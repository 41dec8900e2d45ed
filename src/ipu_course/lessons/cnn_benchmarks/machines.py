"""Training on more IPUs with the same global batch: what is gained, and where the rest goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show
from ipu_course.schedule import busy_by_steps

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

__all__ = ["show_machines"]


def show_machines(results: Sequence[Result]) -> None:
    """Show how the throughput of training grows from the first machine to the others."""
    found = [result for result in results if result is not engine.NOT_MODELLED]
    if not found:
        print(engine.NOT_HERE)
        return
    show.table([_row(result, found[0]) for result in found], index="machine")


def _row(result: Result, first: Result) -> dict[str, object]:
    settings, shares = result.settings, result.profile.shares
    return {
        "machine": f"{settings.machine}, {settings.ipus} IPUs",
        "accumulation": settings.gradient_accumulation,
        "global batch": f"{settings.global_batch:,}",
        "images a second (modelled)": f"{result.images_per_second:,.0f}",
        f"times those of {first.settings.ipus} IPUs": f"{result.images_per_second / first.images_per_second:.2f}",
        "time spent filling and draining": f"{shares['fill and flush']:.1%}",
        "time spent on the all-reduce": f"{shares['collective']:.1%}",
        "busy, counted in steps": f"{busy_by_steps(settings.shards, settings.gradient_accumulation):.1%}",
    }
