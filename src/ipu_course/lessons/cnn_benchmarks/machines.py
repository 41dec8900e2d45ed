"""Training on more IPUs with the same global batch: what is gained, and where the rest goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show
from ipu_course.published_resnet50 import PUBLISHED_RATE

if TYPE_CHECKING:
    from ipu_course.engine import ScalingPoint
    from ipu_course.programs.bench import Result

__all__ = ["pod16_rows", "show_machines"]


def show_machines(results: Sequence[Result]) -> None:
    """Show how the throughput of training grows from the first machine to the others."""
    found = [result for result in results if result is not engine.NOT_MODELLED]
    if not found:
        print(engine.NOT_HERE)
        return
    show.table([_row(result, found[0]) for result in found], index="machine")


def pod16_rows(pipelines: Result, replicas: ScalingPoint) -> list[dict[str, object]]:
    """Return a table of two ways to train ResNet-50 on a POD16: the page's pipelines and MLPerf's single IPUs.

    Without a model there are no rows.
    """
    if pipelines is engine.NOT_MODELLED:
        return []
    rates = (
        ("4 pipelines of 4 IPUs (the page)", pipelines.images_per_second, "not published"),
        ("16 replicas of 1 IPU (MLPerf)", replicas.samples_per_second, f"{PUBLISHED_RATE:,.0f}"),
    )
    return [
        {"POD16, ResNet-50": name, "images/s (modelled)": f"{modelled:,.0f}", "images/s (derived from [3])": derived}
        for name, modelled, derived in rates
    ]


def _row(result: Result, first: Result) -> dict[str, object]:
    settings, shares = result.settings, result.profile.shares
    return {
        "machine": f"{settings.machine}, {settings.ipus} IPUs",
        "accumulation": settings.gradient_accumulation,
        "images/s (modelled)": f"{result.images_per_second:,.0f}",
        f"times those of {first.settings.ipus} IPUs": f"{result.images_per_second / first.images_per_second:.2f}",
        "time spent filling, draining": f"{shares['fill and flush']:.1%}",
        "on the all-reduce": f"{shares['collective']:.1%}",
    }
