"""What lesson 01 shows of its profiles: memory by parts against the limit, and the rates of the IPUs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure
from ipu_course.figures.curves import curves_figure
from ipu_course.lessons.half_precision.tile_memory_figure import tile_memory_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import IpuMemory, Profile

KIB = 1024
UPDATES_BETWEEN_MARKS = 10
# The engine's categories, in the words of the lesson.
PARTS: Mapping[str, str] = {
    "variables": "weights",
    "optimiser state": "optimiser and accumulators",
    "gradient accumulators": "optimiser and accumulators",
    "activations": "activations and gradients",
    "gradients": "activations and gradients",
    "stashes": "activations and gradients",
    "temporaries": "temporaries",
}
REST = "code and exchange"
PARTS_IN_ORDER = (*dict.fromkeys(PARTS.values()), REST)
MEMORY_TITLE = "What fills the fullest tile of each IPU (modelled)"

Named = Mapping[str, "Profile | None"]


def show_tile_memory(profiles: Named) -> None:
    """Show what the fullest tile of each program holds, by parts, against the limit."""
    there = _there(profiles)
    if there:
        show.figure(memory_figure(there), memory_words(there))
        rows = [{"program": name, **memory_cells(profile)} for name, profile in there.items()]
        show.table(rows, index="program")


def show_rates(profiles: Named) -> None:
    """Show the images a second of the IPUs alone, the host left out, for each program."""
    there = _there(profiles)
    if not there:
        return
    rates = [profile.device_samples_per_second for profile in there.values()]
    drawn = bars_figure(
        list(there), {"rate": rates}, "images a second", "ResNet-101, the IPUs alone (modelled)", form="{:,.0f}"
    )
    words = "; ".join(f"{name} {rate:,.0f}" for name, rate in zip(there, rates))
    show.figure(drawn, f"Images a second of the two IPUs, without the host, modelled: {words}.")


def show_paths(paths: Mapping[str, Sequence[float]]) -> None:
    """Show the mean of weights before the first and after each update, for up to three ways of rounding."""
    updates = range(0, max(len(path) for path in paths.values()), UPDATES_BETWEEN_MARKS)
    curves = {name: [path[update] for update in updates] for name, path in paths.items()}
    drawn = curves_figure(
        updates, curves, "updates of 0.0001", "mean of 1,000 weights", "Updates that are smaller than half a step"
    )
    words = "; ".join(f"{name} {path[-1]:.2f}" for name, path in paths.items())
    show.figure(drawn, f"Mean of the weights against the updates, one line for each rounding. At the end: {words}.")


def memory_figure(profiles: Mapping[str, Profile]) -> Figure:
    """One bar for each program and IPU: its fullest tile by parts, against the limit."""
    limit = next(iter(profiles.values())).memory.tile_bytes / KIB
    bars = {f"{name}, IPU {ipu.ipu}": tile_parts(ipu) for name, profile in profiles.items() for ipu in profile.memory}
    return tile_memory_figure(bars, limit, MEMORY_TITLE)


def memory_words(profiles: Mapping[str, Profile]) -> str:
    """The figure in words."""
    each = "; ".join(f"{name} {_ipus_in_words(profile)}" for name, profile in profiles.items())
    limit = next(iter(profiles.values())).memory.tile_bytes / KIB
    return f"One bar for each IPU, its fullest tile by parts, in KiB, modelled: {each}. A tile has {limit:.0f}."


def _ipus_in_words(profile: Profile) -> str:
    return ", ".join(
        f"IPU {ipu.ipu} {ipu.max_tile_bytes / KIB:.0f} (most of it {_largest_part(ipu)})" for ipu in profile.memory
    )


def memory_cells(profile: Profile) -> dict[str, object]:
    """Table cells: the fullest tile, the limit, and whether it fits."""
    memory = profile.memory
    return {
        "fullest tile": f"{memory.max_tile_bytes / KIB:.0f} KiB",
        "limit": f"{memory.tile_bytes / KIB:.0f} KiB",
        "fits": engine.fits_in_a_word(profile),
    }


def tile_parts(memory: IpuMemory) -> dict[str, float]:
    """KiB on the fullest tile of one IPU, by the parts of this lesson."""
    parts = dict.fromkeys(PARTS_IN_ORDER, 0.0)
    for category, size in memory.bytes_by_category.items():
        parts[PARTS.get(category, REST)] += size / KIB
    return parts


def _largest_part(memory: IpuMemory) -> str:
    parts = tile_parts(memory)
    return max(parts, key=lambda part: parts[part])


def _there(profiles: Named) -> dict[str, Profile]:
    there = {name: profile for name, profile in profiles.items() if profile}
    if not there:
        print(engine.NOT_HERE)
    return there
