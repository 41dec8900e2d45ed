"""Lesson 12's explorer: the program over time, by available-memory proportion and type of partials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.lessons.memory_techniques.choices import KIB, fullest_kib
from ipu_course.lessons.memory_techniques.sweep import DEFAULT, PROPORTIONS, swept

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule


def proportion_view(module: ModelledModule, proportion: float, half_partials: bool) -> View:
    """Show what is live over time with a proportion, and its price in throughput."""
    profile, usual = swept(module, proportion, half_partials), swept(module, DEFAULT, half_partials)
    drawn, words = engine.figure("liveness", profile)
    memory = profile.memory[0]
    peak = memory.liveness[memory.peak]
    change = profile.samples_per_second / usual.samples_per_second - 1
    return View(
        drawn,
        takeaway=f"The peak is in {peak.name} ({peak.phase}), with {peak.temporary_bytes / KIB:.0f} KiB of temporary "
        "data (modelled).",
        description=f"{words.rstrip('.')} (modelled).",
        rows=[
            {
                "proportion": proportion,
                "partials": "float16" if half_partials else "float32",
                "fullest tile": f"{fullest_kib(profile):.0f} KiB",
                "temporary data at the peak": f"{peak.temporary_bytes / KIB:.0f} KiB",
                "samples/s": f"{profile.samples_per_second:,.0f}",
                f"change from {DEFAULT}": f"{change:+.1%}",
            }
        ],
        text="Modelled.",
    )


PROPORTION = Explorer(
    controls={
        "proportion": Slider("available-memory proportion", PROPORTIONS, DEFAULT),
        "half_partials": Choice("partials", {"float32": False, "float16": True}, False),
    },
    view=proportion_view,
)
