"""The parts that reports show of a profile: phases, categories of memory, groups of ops, rows of the timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

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

PHASE_NAMES = {field.name: field.name.title().replace("_", "") for field in fields(PhaseCycles)}
"""The names that PopVision gives to the fields of `PhaseCycles`."""

MEMORY_GROUPS = ("parameters", "code", "activations", "temporary data", "other")
"""Groups of categories of memory, from what never changes to what does all the time."""

HOST_KINDS = ("load", "call")
DEVICE_WORKS = "works"
"""The kind of the span that stands for the device as a whole."""
_CLOSE_SECONDS = 0.5e-9
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
    """One row of the timeline: spans in order of time, none of which starts before the one before it has ended."""

    name: str
    spans: tuple[Span, ...]

    @property
    def busy_seconds(self) -> float:
        return sum(span.seconds for span in self.spans if span.kind != "wait")


def memory_group(category: str) -> str:
    if category in (*PARAMETERS, CONSTANTS):
        return "parameters"
    if category in OF_ACTIVATIONS:
        return "activations"
    if category == TEMPORARIES:
        return "temporary data"
    return "code" if category in CODE else "other"


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
    """Return all rows, the loader's and host's first, then IPUs; overlapping spans go to "host", "host (2)", ..."""
    spans = list(timeline)
    hosts = _host_resources(spans)
    ipus = {span.resource: span.ipu for span in spans if span.ipu is not None}

    def order(name: str) -> tuple[float, float, str]:
        return hosts.get(name, len(HOST_KINDS)), ipus.get(name, math.inf), name

    return tuple(
        Row(f"{resource} ({number})" if number > 1 else resource, lane)
        for resource in sorted({span.resource for span in spans}, key=order)
        for number, lane in enumerate(_lanes(span for span in spans if span.resource == resource), 1)
    )


def device_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of what is not the host, with times from where the device begins."""
    device = _split(timeline)[1]
    begin = min((span.start for span in device), default=0.0)
    return all_rows(replace(span, start=span.start - begin) for span in device)


def host_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of the host, and one for the device as a whole: from where it begins to where it ends."""
    host, device = _split(timeline)
    if not device:
        return all_rows(host)
    begin, end = min(span.start for span in device), max(span.end for span in device)
    return (*all_rows(host), Row("device", (Span("device", DEVICE_WORKS, begin, end - begin),)))


def kinds_of(rows: Iterable[Row]) -> list[str]:
    used = {span.kind for row in rows for span in row.spans}
    return [kind for kind in SPAN_KINDS if kind in used] + sorted(used - set(SPAN_KINDS))


def _split(timeline: Iterable[Span]) -> tuple[list[Span], list[Span]]:
    spans = list(timeline)
    hosts = _host_resources(spans)
    return [span for span in spans if span.resource in hosts], [span for span in spans if span.resource not in hosts]


def _host_resources(spans: Iterable[Span]) -> dict[str, int]:
    """Return the resources of the host with their rank among them: those that load come first."""
    ranked = {(HOST_KINDS.index(span.kind), span.resource) for span in spans if span.kind in HOST_KINDS}
    return {resource: rank for rank, resource in sorted(ranked, reverse=True)}


def _lanes(spans: Iterable[Span]) -> list[tuple[Span, ...]]:
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.seconds)):
        free = next((lane for lane in lanes if lane[-1].end <= span.start + _CLOSE_SECONDS), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return [tuple(lane) for lane in lanes]
