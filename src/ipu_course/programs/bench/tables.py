"""Results as rows: of a table to read, and of plain values for other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Iterable, Sequence

from ipu_course.programs.bench.results import Result

NUMBERS = ("batch", "IPUs", "images/s", "latency ms", "KiB on a tile", "loader MB/s")
WORDS = {"fits": "yes", "too close to call": "close", "does not fit": "no"}


def rows(results: Iterable[Result]) -> list[dict[str, object]]:
    """One row for each result, as ``ipu_course.show.table`` takes them; figures are modelled.

    Rates of what does not fit stand in brackets: they would be so.
    """
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, object]:
    settings = result.settings
    rate = f"{result.images_per_second:,.0f}"
    latency = result.latency_seconds
    return {
        "configuration": result.name,
        "batch": settings.batch_size,
        "IPUs": settings.ipus,
        "images/s": f"({rate})" if result.verdict == "does not fit" else rate,
        "error band": _percent(result),
        "latency ms": "-" if latency is None else f"{1000 * latency:.2f}",
        "KiB on a tile": f"{result.tile_kib:.0f}",
        "fits": WORDS[result.verdict],
        "limited by": result.profile.limited_by,
        "loader MB/s": f"{result.loader_bytes_per_second / 1e6:,.0f}",
    }


def _percent(result: Result) -> str:
    low, high = (100 * (factor - 1) for factor in result.rate_band)
    return f"{low:+.0f} to {high:+.0f} %"


def text_table(lines: Sequence[dict[str, object]]) -> str:
    """Rows as text in aligned columns, numbers to the right."""
    if not lines:
        return ""
    heads = list(lines[0])
    cells = [heads, *([str(line[head]) for head in heads] for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    texts = ["  ".join(_aligned(text, width, head) for text, width, head in zip(row, widths, heads)) for row in cells]
    texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(text.rstrip() for text in texts)


def _aligned(text: str, width: int, head: str) -> str:
    return text.rjust(width) if head in NUMBERS else text.ljust(width)


def record(result: Result) -> dict[str, Any]:
    """A result as plain values, with units in the names; all figures are modelled."""
    profile, memory = result.profile, result.profile.memory
    return {
        "configuration": result.name,
        "settings": asdict(result.settings),
        "modelled": {
            "images_per_second": result.images_per_second,
            "images_per_second_of_each_step": list(result.step_rates),
            "error_band_of_images_per_second": list(result.rate_band),
            "step_seconds": profile.call_seconds,
            "images_per_step": result.settings.images_per_step,
            "start_seconds": result.start_seconds,
            "compilation_seconds": profile.compilation_seconds,
            "latency_seconds": result.latency_seconds,
            "latency_device_seconds": result.latency_device_seconds,
            "fits": result.verdict,
            "bytes_on_fullest_tile": memory.max_tile_bytes,
            "bytes_of_a_tile": memory.tile_bytes,
            "bytes_on_fullest_tile_of_each_ipu": [ipu.max_tile_bytes for ipu in memory],
            "limited_by": profile.limited_by,
            "loader_images_per_second": result.loader_images_per_second,
            "loader_bytes_per_second": result.loader_bytes_per_second,
            "teraflops_per_ipu": result.teraflops_per_ipu,
            "notes": list(profile.notes),
            "remedies": list(result.remedies),
        },
    }
