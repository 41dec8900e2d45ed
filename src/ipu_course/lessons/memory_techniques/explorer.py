"""Lesson 12's explorer: the program over time, by available-memory proportion and type of partials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.figures.floor_and_hill import floor_and_hill
from ipu_course.lessons.memory_techniques.choices import fullest_kib
from ipu_course.lessons.memory_techniques.over_time import peak_in_words
from ipu_course.lessons.memory_techniques.sweep import DEFAULT, PROPORTIONS, swept
from ipu_course.tile_over_time import hill_of

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule


def proportion_view(module: ModelledModule, proportion: float, half_partials: bool) -> View:
    """Show what is live over time with a proportion, and its price in throughput."""
    profile, usual = swept(module, proportion, half_partials), swept(module, DEFAULT, half_partials)
    hill = hill_of(profile)
    peak = hill.peak
    change = profile.samples_per_second / usual.samples_per_second - 1
    return View(
        floor_and_hill(hill),
        takeaway=f"The peak is in {hill.names[peak]} ({hill.phases[peak]}), with {hill.temporary[peak]:.0f} KiB of "
        "temporary data (modelled).",
        description=f"The fullest tile over time, modelled: {peak_in_words(hill)}.",
        rows=[
            {
                "proportion": proportion,
                "partials": "float16" if half_partials else "float32",
                "fullest tile": f"{fullest_kib(profile):.0f} KiB",
                "temporary data at the peak": f"{hill.temporary[peak]:.0f} KiB",
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
