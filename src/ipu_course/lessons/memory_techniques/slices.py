"""The last product in slices: what each number of slices saves and costs."""

from __future__ import annotations

from typing import Sequence

from ipu_course import engine, show
from ipu_course.lessons.memory_techniques.choices import KIB, captured, fullest_kib


def show_slices(counts: Sequence[int]) -> None:
    """Show the fullest tile, its peak and the throughput for each number of slices; 0 is the product in one piece."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    for count in counts:
        profile = captured(count).profile()
        memory = profile.memory[0]
        peak = memory.liveness[memory.peak]
        rows.append(
            {
                "slices (modelled)": count or "none",
                "fullest tile": f"{fullest_kib(profile):.0f} KiB",
                "its peak": f"{peak.name} ({peak.phase})",
                "temporary data then": f"{peak.temporary_bytes / KIB:.0f} KiB",
                "samples/s": f"{profile.samples_per_second:,.0f}",
            }
        )
    show.table(rows, index="slices (modelled)")
