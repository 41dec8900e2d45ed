"""The parts that reports show of a profile: phases, categories of memory, groups of ops, rows of the timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter

from ipu_model.predict.profile import (
    CODE,
    CONSTANTS,
    OF_ACTIVATIONS,
    PARAMETERS,
    SPAN_KINDS,
    TEMPORARIES,
    IpuMemory,
    LiveTensor,
    PhaseCycles,
    Profile,
    Span,
)
from ipu_model.report.quantities import percent, whole

PHASE_NAMES = {field.name: field.name.title().replace("_", "") for field in fields(PhaseCycles)}
"""The names that PopVision gives to the fields of `PhaseCycles`."""

MEMORY_GROUPS = ("parameters", "code", "activations", "temporary data", "other")
"""Groups of categories of memory, from what never changes to what does all the time."""

HOST_KINDS = ("load", "call")
DEVICE_WORKS = "works"
"""The kind of the span that stands for the device as a whole."""
_LAYER = re.compile(r"\.\d+\b")
LAYER_STAR = ".*"
"""What stands for the number of a layer in the name of tensors of several layers."""


@dataclass(frozen=True)
class Category:
    """One category of memory: bytes on the fullest tile of every IPU, and of all tiles of all IPUs."""

    name: str
    always_live: bool
    bytes_on_fullest_tile: tuple[float, ...]
    total_bytes: float


@dataclass(frozen=True)
class Row:
    """One row of the timeline: spans in order of time."""

    name: str
    spans: tuple[Span, ...]

    @property
    def busy_seconds(self) -> float:
        return sum(span.seconds for span in self.spans if span.kind != "wait")


def memory_group(category: str) -> str:
    groups = ((*PARAMETERS, CONSTANTS), CODE, OF_ACTIVATIONS, (TEMPORARIES,))
    return next((name for name, group in zip(MEMORY_GROUPS, groups) if category in group), "other")


def tiles_by_group(memory: IpuMemory) -> dict[str, list[float]]:
    """Return the bytes of each tile by group of categories; nothing where tiles are not known by category."""
    tiles = len(memory.tiles)
    if any(sum(run.tiles for run in category.runs) != tiles for category in memory.categories):
        return {}
    held: dict[str, list[float]] = {}
    for category in memory.categories:
        group = held.setdefault(memory_group(category.name), [0.0] * tiles)
        for tile, count in enumerate(category.tiles):
            group[tile] += count
    return {name: held[name] for name in MEMORY_GROUPS if name in held}


def phases(profile: Profile) -> Mapping[str, tuple[float, ...]]:
    """Return the cycles of every IPU by phase of the execution trace, in PopVision's order."""
    return {name: tuple(getattr(ipu, field) for ipu in profile.cycles) for field, name in PHASE_NAMES.items()}


def cycle_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return rows of texts: the cycles of every IPU by phase, their sums, and the shares of `OnTileExecute`."""
    return [
        *((phase, *map(whole, cycles)) for phase, cycles in phases(profile).items()),
        ("total", *(whole(ipu.total) for ipu in profile.cycles)),
        ("share of OnTileExecute", *(percent(compute_share(ipu)) for ipu in profile.cycles)),
    ]


def compute_share(cycles: PhaseCycles) -> float:
    return cycles.on_tile_execute / cycles.total if cycles.total else 0.0


def categories(profile: Profile) -> tuple[Category, ...]:
    """Return the categories of memory, the largest first (by what its fullest tile holds on any IPU)."""
    on_tiles: dict[str, list[float]] = {}
    total: dict[str, float] = {}
    shared = {category.name for memory in profile.memory for category in memory.categories if not category.always_live}
    for index, memory in enumerate(profile.memory):
        for category in memory.categories:
            on_tiles.setdefault(category.name, [0.0] * len(profile.memory))[index] += category.bytes_on_fullest_tile
            total[category.name] = total.get(category.name, 0.0) + category.total_bytes
    rows = (Category(name, name not in shared, tuple(held), total[name]) for name, held in on_tiles.items())
    return tuple(sorted(rows, key=lambda category: -max(category.bytes_on_fullest_tile)))


def fallback_share(profile: Profile) -> float:
    every = sum(op.cycles_per_call for op in profile.work)
    return sum(op.cycles_per_call for op in profile.fallbacks) / every if every else 0.0


def layers_starred(name: str) -> str:
    """Return the name of a tensor with a star for the number of its layer: equal ones of other layers share it."""
    return _LAYER.sub(LAYER_STAR, name)


def type_of(tensor: LiveTensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}" if tensor.dtype else ""


def fullest_ipus(profile: Profile, most: int) -> tuple[int, ...]:
    """Return the places in `profile.memory` of at most `most` IPUs in order: all, or those with the fullest tiles."""
    by_bytes = sorted(range(len(profile.memory)), key=lambda index: -profile.memory[index].max_tile_bytes)
    return tuple(sorted(by_bytes[:most]))


def all_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the row of each resource: the loader's and the host's first, then IPUs."""

    def place(span: Span) -> tuple[int, float, str]:
        rank = HOST_KINDS.index(span.kind) if span.kind in HOST_KINDS else len(HOST_KINDS)
        return rank, math.inf if span.ipu is None else span.ipu, span.resource

    spans = sorted(timeline, key=lambda span: (place(span), span.start))
    return tuple(Row(resource, tuple(own)) for resource, own in groupby(spans, key=attrgetter("resource")))


def device_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of what is not the host, with times from where the device begins."""
    device = [span for span in timeline if span.kind not in HOST_KINDS]
    begin = min((span.start for span in device), default=0.0)
    return all_rows(replace(span, start=span.start - begin) for span in device)


def host_rows(timeline: Sequence[Span]) -> tuple[Row, ...]:
    """Return the rows of the host, and one for the device as a whole: from where it begins to where it ends."""
    host = [span for span in timeline if span.kind in HOST_KINDS]
    device = [span for span in timeline if span.kind not in HOST_KINDS]
    if not device:
        return all_rows(host)
    begin, end = min(span.start for span in device), max(span.end for span in device)
    return (*all_rows(host), Row("device", (Span("device", DEVICE_WORKS, begin, end - begin),)))


def kinds_of(rows: Iterable[Row]) -> list[str]:
    used = {span.kind for row in rows for span in row.spans}
    return [kind for kind in SPAN_KINDS if kind in used] + sorted(used - set(SPAN_KINDS))
