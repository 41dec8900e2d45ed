"""Tables that hold a count by hand against the profile, and code against published reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Sequence

from torch import nn

from ipu_course import engine, show
from ipu_course.lessons.where_memory_goes.by_hand import TILES, always_live, counted_by
from ipu_course.lessons.where_memory_goes.exercises import KIB, NAMES

if TYPE_CHECKING:
    from ipu_course.engine import IpuMemory, Profile
    from ipu_course.published import PublishedFigure

CODE = (
    "internal exchange code", "vertex state", "vertex code", "control code", "host exchange code",
    "global exchange code", "stacks, gaps and other",
)  # fmt: skip
MIB = KIB * KIB
ON_TILES = "on every tile (modelled)"
AT_THE_PEAK = ("gradient accumulators", "gradients", "activations", "temporaries")


def show_always_live(count: Callable[..., Sequence[int]], network: nn.Module, profile: Profile) -> None:
    """Show the three sizes of a network beside the profile of its training on one IPU, with AdamW and accumulation.

    ``count`` is the learner's function; as long as it is open, the course's counts.
    """
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    counted_with = counted_by(count, always_live)
    by_hand = counted_with.function(network, 2, True)
    found = {each.name: each for each in profile.memory[0].categories}
    rows: list[dict[str, object]] = []
    for name, counted in zip(NAMES, by_hand):
        category = found.get(name)
        total, here = (category.total_bytes, category.bytes_on_fullest_tile) if category else (0.0, 0.0)
        rows.append(
            {
                "always live": name,
                f"counted by {counted_with.by}": f"{counted / MIB:.2f} MiB",
                "modelled": f"{total / MIB:.2f} MiB",
                "difference": f"{counted - total:,.0f} bytes",
                "spread evenly": f"{counted / TILES / KIB:.1f} KiB a tile",
                "modelled, fullest tile": f"{here / KIB:.1f} KiB",
            }
        )
    show.table(rows, index="always live")


def show_gradients(profiles: Mapping[int, Profile]) -> None:
    """Show where gradients are at the peak of a program on one IPU, for programs by their gradient accumulation."""
    if any(profile is engine.NOT_MODELLED for profile in profiles.values()):
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    for accumulation, profile in profiles.items():
        sizes = profile.memory[0].bytes_by_category
        cells = {name: f"{sizes.get(name, 0.0) / KIB:.1f} KiB" for name in AT_THE_PEAK}
        rows.append({"accumulation (modelled)": accumulation, **cells})
    show.table(rows, index="accumulation (modelled)")


def code_kib(memory: IpuMemory) -> float:
    """Return the KiB of the fullest tile that no tensor takes: code, its tables, stacks and gaps."""
    return sum(memory.bytes_by_category.get(name, 0.0) for name in CODE) / KIB


def show_code(profile: Profile, published: PublishedFigure) -> None:
    """Show what code takes on a tile of each IPU, and a published sum for another network."""
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    for name in CODE:
        sizes = {f"IPU {ipu.ipu}": f"{ipu.bytes_by_category.get(name, 0.0) / KIB:.1f} KiB" for ipu in profile.memory}
        rows.append({ON_TILES: name, **sizes})
    sums = {f"IPU {ipu.ipu}": f"{code_kib(ipu):.1f} KiB" for ipu in profile.memory}
    shares = {f"IPU {ipu.ipu}": f"{code_kib(ipu) * KIB / ipu.max_tile_bytes:.0%}" for ipu in profile.memory}
    rows += [{ON_TILES: "together", **sums}, {ON_TILES: "of the fullest tile", **shares}]
    show.table(rows, index=ON_TILES)
    print(f"{published.kind}: {published.text} {published.source}")
