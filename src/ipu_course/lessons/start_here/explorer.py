"""The first lesson's explorer: one profile, and every picture that a profile has."""

from __future__ import annotations

from typing import Any

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, View

KIB = 1024
FOR_PARAMETERS = ("variables", "optimiser state", "gradient accumulators")
LEAST_KIB = 1.0  # smaller parts are left out of the table
QUESTIONS = {
    "Does it fit? Memory of every tile": "memory per tile",
    "What fills the memory?": "memory",
    "What is the bottleneck? Host and device": "host and device",
    "What do the IPUs do, and when?": "timeline",
    "Where do the cycles go?": "cycles",
}
READING = {
    "memory per tile": "No tile may come above the dashed limit: the fullest one decides.",
    "memory": "The parameters are only a part: code and activations take a lot of memory, too.",
    "host and device": "The device works only after the host has loaded; the gaps are time in which the IPUs wait.",
    "timeline": "Where one IPU works and the other does not, the pipeline is filling or draining (lesson 06).",
    "cycles": "OnTileExecute is computing, DoExchange is exchange; the syncs and StreamCopyBegin are waiting.",
}


def kib_for_parameters(profile: Any, ipu: int) -> float:
    """Return the KiB that weights, optimiser state and accumulators take on the fullest tile of one IPU."""
    sizes = profile.memory[ipu].bytes_by_category
    return float(sum(sizes[part] for part in FOR_PARAMETERS)) / KIB


def picture_view(profile: Any, picture: str) -> View:
    """Return one picture of ``profile`` with how to read it, and for the memory a table in KiB."""
    drawn, words = engine.figure(picture, profile)
    rows = _memory_rows(profile) if picture == "memory" else ()
    return View(drawn, f"{READING[picture]} (modelled)", f"{words} Modelled.", rows)


def _memory_rows(profile: Any) -> list[dict[str, object]]:
    columns = [each.bytes_by_category for each in profile.memory]
    largest = {part: max(sizes.get(part, 0.0) for sizes in columns) / KIB for sizes in columns for part in sizes}
    parts = [part for part in sorted(largest, key=lambda part: -largest[part]) if largest[part] >= LEAST_KIB]
    return [
        {
            "on the fullest tile, KiB": part,
            **{f"IPU {ipu}": f"{sizes.get(part, 0.0) / KIB:.1f}" for ipu, sizes in enumerate(columns)},
        }
        for part in parts
    ]


PICTURES = Explorer(
    controls={"picture": Choice("question", QUESTIONS, "host and device")},
    view=picture_view,
)
