"""HTML tables of memory."""

from __future__ import annotations

from ipu_model.profiling.data import Profile
from ipu_model.report.breakdown import categories
from ipu_model.report.markup import Cell, Number, table
from ipu_model.report.quantities import percent, size, whole

_MOST_PEAKS = 5


def per_tile(profile: Profile) -> str:
    """Return how full the tiles of each IPU are."""
    limit = profile.memory.tile_bytes
    rows: list[list[Cell]] = []
    for memory in profile.memory:
        mean = memory.total_bytes / max(1, len(memory.tiles))
        over = sum(count > limit for count in memory.tiles)
        rows.append([
            f"IPU {memory.ipu}", _bytes(memory.max_tile_bytes), Number(percent(memory.max_tile_bytes / limit),
            memory.max_tile_bytes / limit), Number(str(memory.fullest_tile), memory.fullest_tile), _bytes(mean),
            _bytes(min(memory.tiles, default=0.0)), Number(whole(over), over),
            Number(size(memory.total_bytes), memory.total_bytes),
        ])  # fmt: skip
    head = (
        "IPU",
        "fullest tile",
        "of the limit",
        "which tile",
        "mean tile",
        "emptiest tile",
        "tiles above the limit",
        "all tiles",
    )
    return table(head, rows, f"Bytes of the tiles, modelled; a tile holds {whole(limit)}")


def by_category(profile: Profile) -> str:
    """Return what the fullest tile of each IPU holds."""
    rows: list[list[Cell]] = [
        [
            each.name,
            "always" if each.always_live else "at the peak",
            *(_bytes(count) for count in each.bytes_on_fullest_tile),
            Number(size(each.total_bytes), each.total_bytes),
        ]
        for each in categories(profile)
    ]
    rows.append([
        "fullest tile", "", *(_bytes(memory.max_tile_bytes) for memory in profile.memory),
        Number(size(sum(m.total_bytes for m in profile.memory)), sum(m.total_bytes for m in profile.memory)),
    ])  # fmt: skip
    head = ("category", "live", *(f"IPU {memory.ipu}" for memory in profile.memory), "all tiles")
    return table(head, rows, "Bytes of the fullest tile by category, modelled")


def peaks(profile: Profile) -> str:
    """Return the ops during which the fullest tile is fullest."""
    rows: list[list[Cell]] = []
    for memory in profile.memory:
        steps = sorted(memory.liveness, key=lambda step: -step.bytes_on_tile)[:_MOST_PEAKS]
        rows += [
            [f"IPU {memory.ipu}", step.node, step.phase, _bytes(step.bytes_on_tile), _bytes(step.temporary_bytes)]
            for step in steps
        ]
    head = ("IPU", "op", "phase", "live besides what always is", "of it temporary")
    return table(head, rows, "The ops that need most memory, in bytes of the fullest tile, modelled") if rows else ""


def _bytes(count: float) -> Number:
    return Number(whole(count), count)
