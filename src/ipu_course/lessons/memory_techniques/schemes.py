"""Other execution schemes: the lesson's program on two IPUs and in phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.lessons.memory_techniques.choices import captured, fullest_kib
from ipu_course.lessons.memory_techniques.techniques import SECOND_IPU, rate_per_ipu

if TYPE_CHECKING:
    from ipu_course.engine import Profile


@engine.needs_the_model
def two_ipus(execution: str) -> Profile:
    """Return the profile of the program over two IPUs, "pipelined" or "sharded"."""
    return captured().profile(split=[SECOND_IPU], execution=execution)


def show_schemes(profiles: Mapping[str, Profile]) -> None:
    """Show what each scheme needs and how fast it is, by its name."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = [
        {
            "scheme (modelled)": name,
            "IPUs": len(profile.memory),
            "fullest tile": f"{fullest_kib(profile):.0f} KiB",
            "samples/s": f"{profile.samples_per_second:,.0f}",
            "for each IPU": f"{rate_per_ipu(profile):,.0f}",
            "fits": engine.fits_in_a_word(profile),
        }
        for name, profile in profiles.items()
    ]
    show.table(rows, index="scheme (modelled)")
