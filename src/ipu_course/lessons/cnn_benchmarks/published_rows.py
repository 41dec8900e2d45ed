"""Published throughputs of ResNet-50: first as they are printed, then with their settings, then beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show

if TYPE_CHECKING:
    from ipu_course.lesson import Lesson
    from ipu_course.programs.bench import Result

__all__ = ["BLIND", "ROWS", "PublishedRow", "as_printed", "show_scored_blind", "with_settings"]


@dataclass(frozen=True)
class PublishedRow:
    """One published throughput of ResNet-50: its key in ``published.json``, and what a reader has to know besides."""

    letter: str
    key: str
    work: str
    ipus: int
    chip: str
    micro_batch: int
    data: str


# Sources: the settings are those of the rows M1, B3, B4 and B7 in docs/validation.md.
ROWS = (
    PublishedRow("A", "c600_1", "inference", 1, "C600 (inferred)", 1, "made on the IPU"),
    PublishedRow("B", "c600_64", "inference", 1, "C600 (inferred)", 64, "made on the IPU"),
    PublishedRow("C", "mlperf_pod16", "training", 16, "GC200", 20, "ImageNet, loaded and sent"),
    PublishedRow("D", "alcf_bow16", "training", 16, "Bow", 18, "8-bit images, origin not recorded"),
)

# Batch size: images per second that the model gave for a C600 on the day when it had never seen these rows.
BLIND = {1: 3905.0, 4: 7446.0, 16: 11248.0, 64: 15235.0}


def as_printed(lesson: Lesson) -> list[dict[str, object]]:
    """Return the table that one could make of four published pages without reading them."""
    return [
        {
            "system": row.letter,
            "network": "ResNet-50",
            "images/s": _rate(lesson, row),
            "source": _source(lesson, row),
        }
        for row in ROWS
    ]


def with_settings(lesson: Lesson) -> list[dict[str, object]]:
    """Return the same table with what each page says about its settings."""
    return [
        {
            "system": row.letter,
            "images/s": _rate(lesson, row),
            "work": row.work,
            "IPUs": row.ipus,
            "images/s per IPU (derived)": f"{lesson.published(row.key).value / row.ipus:,.0f}",
            "chip": row.chip,
            "micro-batch": row.micro_batch,
            "data": row.data,
        }
        for row in ROWS
    ]


def show_scored_blind(lesson: Lesson, results: Sequence[Result]) -> None:
    """Show the published rates of a C600 beside the model's, of the day when it was scored blind and of today."""
    if not results:
        print(engine.NOT_HERE)
        return
    show.table([_blind_row(lesson, result) for result in results if result.settings.batch_size in BLIND], index="batch")


def _blind_row(lesson: Lesson, result: Result) -> dict[str, object]:
    batch = result.settings.batch_size
    published = lesson.published(f"c600_{batch}").value
    return {
        "batch": batch,
        "images/s, published": f"{published:,.0f}",
        "scored blind": f"{BLIND[batch]:,.0f}",
        "error of that day": f"{BLIND[batch] / published - 1:+.1%}",
        "error today": f"{result.images_per_second / published - 1:+.1%}",
    }


def _rate(lesson: Lesson, row: PublishedRow) -> str:
    return f"{lesson.published(row.key).value:,.0f}"


def _source(lesson: Lesson, row: PublishedRow) -> str:
    figure = lesson.published(row.key)
    return f"{figure.kind} {figure.source}"
