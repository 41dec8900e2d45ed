"""The parts that reports show of a profile: phases, categories of memory, groups of ops, rows of the timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from ipu_model.predict.memory.categories import CODE, CONSTANTS, OF_ACTIVATIONS, PARAMETERS, TEMPORARIES
from ipu_model.predict.profile import IpuMemory, LiveTensor, OpProfile, PhaseCycles, Profile, Span
from ipu_model.report.module_tree import main_parts, module_tree

PHASE_NAMES = {
    "on_tile_execute": "OnTileExecute",
    "do_exchange": "DoExchange",
    "global_exchange": "GlobalExchange",
    "stream_copy_begin": "StreamCopyBegin",
    "stream_copy_mid": "StreamCopyMid",
    "stream_copy_end": "StreamCopyEnd",
    "internal_sync": "InternalSync",
    "external_sync": "ExternalSync",
}
"""The fields of `PhaseCycles` by the names that PopVision gives them."""

MEMORY_GROUPS = ("parameters", "code", "activations", "temporary data", "other")
"""Groups of categories of memory, from what never changes to what does all the time."""
_LEAST_GROUPS = 4

HOST_KINDS = ("load", "call")
DEVICE_WORKS = "works"
"""The kind of the span that stands for the device as a whole."""
_CLOSE_SECONDS = 0.5e-9
_LAYER = re.compile(r"\.\d+\b")
LAYER_STAR = ".*"
"""What stands for the number of a layer in the name of tensors of several layers."""


@dataclass(frozen=True)
class Phase:
    """One phase of the execution trace: its cycles on every IPU."""

    name: str
    cycles: tuple[float, ...]


@dataclass(frozen=True)
class Category:
    """One category of memory: bytes on the fullest tile of every IPU, and of all tiles of all IPUs."""

    name: str
    always_live: bool
    bytes_on_fullest_tile: tuple[float, ...]
    total_bytes: float


@dataclass(frozen=True)
class Group:
    """Ops that belong together: cycles of one call on all IPUs, their share of all, and how many ops there are."""

    name: str
    cycles: float
    share: float
    ops: int


@dataclass(frozen=True)
class Row:
    """One row of the timeline: spans in order of time, none of which starts before the one before it has ended."""

    name: str
    spans: tuple[Span, ...]

    @property
    def busy_seconds(self) -> float:
        """How long it does anything but wait."""
        return sum(span.seconds for span in self.spans if span.kind != "wait")


def memory_group(category: str) -> str:
    """Return the one of `MEMORY_GROUPS` that a category of memory belongs to."""
    if category in (*PARAMETERS, CONSTANTS):
        return "parameters"
    if category in OF_ACTIVATIONS:
        return "activations"
    if category == TEMPORARIES:
        return "temporary data"
    return "code" if category in CODE else "other"


def phases(profile: Profile) -> tuple[Phase, ...]:
    """Return all phases in PopVision's order."""
    return tuple(Phase(name, tuple(getattr(c, field) for c in profile.cycles)) for field, name in PHASE_NAMES.items())


def compute_share(cycles: PhaseCycles) -> float:
    """Return the share of OnTileExecute of all cycles; 0 where there are none."""
    return cycles.on_tile_execute / cycles.total if cycles.total else 0.0


def categories(profile: Profile) -> tuple[Category, ...]:
    """Return the categories of memory, the largest first (by what its fullest tile holds on any IPU)."""
    by_name: dict[str, list[float]] = {}
    totals: dict[str, float] = {}
    live: dict[str, bool] = {}
    for index, memory in enumerate(profile.memory):
        for each in memory.categories:
            by_name.setdefault(each.name, [0.0] * len(profile.memory))[index] += each.bytes_on_fullest_tile
            totals[each.name] = totals.get(each.name, 0.0) + each.total_bytes
            live[each.name] = live.get(each.name, True) and each.always_live
    names = sorted(by_name, key=lambda name: -max(by_name[name]))
    return tuple(Category(name, live[name], tuple(by_name[name]), totals[name]) for name in names)


def cycles_per_call(op: OpProfile) -> float:
    """Return the cycles that one part of one op takes in a whole call."""
    return op.cycles * op.executions


def ops_by_cost(profile: Profile) -> tuple[OpProfile, ...]:
    """Return the ops and updates, those that take most cycles of a call first."""
    return tuple(sorted(profile.work, key=lambda op: -cycles_per_call(op)))


def by_family(profile: Profile) -> tuple[Group, ...]:
    """Return the ops by the family of formulas that costed them, the most expensive first."""
    return _grouped(profile.work, attrgetter("family"))


def by_scope(profile: Profile, least: int = _LEAST_GROUPS) -> tuple[Group, ...]:
    """Return the main parts of the model, the most expensive first, with equal layers folded into one."""
    parts = main_parts(module_tree(profile), least)
    return tuple(Group(part.name, part.cycles, part.share, part.ops) for part in parts)


def fallback_share(profile: Profile) -> float:
    """Return the share of all ops' cycles that was costed without a formula of its own."""
    every = sum(map(cycles_per_call, profile.work))
    return sum(map(cycles_per_call, profile.fallbacks)) / every if every else 0.0


@dataclass(frozen=True)
class TensorGroup:
    """Tensors in memory that differ only in the number of their layer; `name` has a star where the numbers differ."""

    name: str
    category: str
    type: str
    count: int
    bytes_on_fullest_tile: float
    total_bytes: float

    @property
    def title(self) -> str:
        """The name, and how many there are."""
        return f"{self.name} x {self.count}" if self.count > 1 else self.name


def layers_starred(name: str) -> str:
    """Return the name of a tensor with a star for the number of its layer: equal ones of other layers share it."""
    return _LAYER.sub(LAYER_STAR, name)


def tensor_groups(memory: IpuMemory) -> tuple[TensorGroup, ...]:
    """Return the tensors alive at the peak of an IPU, the largest first, those of equal layers together."""
    found: dict[tuple[object, ...], list[LiveTensor]] = {}
    for each in memory.live_at_peak:
        found.setdefault((layers_starred(each.name), each.category, each.shape, each.dtype), []).append(each)
    groups = [
        TensorGroup(
            str(name) if len(alike) > 1 else alike[0].name, alike[0].category, _type(alike[0]),
            sum(each.copies for each in alike), sum(each.bytes_on_fullest_tile for each in alike),
            sum(each.total_bytes for each in alike),
        )
        for (name, *_), alike in found.items()
    ]  # fmt: skip
    return tuple(sorted(groups, key=lambda group: -group.bytes_on_fullest_tile))


def _type(tensor: LiveTensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}" if tensor.dtype else ""


def busiest_ipus(profile: Profile, most: int) -> tuple[int, ...]:
    """Return at most `most` IPUs in order: all of them, or those that compute most."""
    by_work = sorted(range(len(profile.cycles)), key=lambda ipu: -profile.cycles[ipu].on_tile_execute)
    return tuple(sorted(by_work[:most]))


def fullest_ipus(profile: Profile, most: int) -> tuple[int, ...]:
    """Return the places in `profile.memory` of at most `most` IPUs in order: all, or those with the fullest tiles."""
    by_bytes = sorted(range(len(profile.memory)), key=lambda index: -profile.memory[index].max_tile_bytes)
    return tuple(sorted(by_bytes[:most]))


def fullest_ipu(profile: Profile) -> int:
    """Return the place in `profile.memory` of the IPU that has the fullest tile."""
    return fullest_ipus(profile, 1)[0]


def all_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return every resource's rows: the loader's and the host's first, then IPUs by number and what else there is.

    Spans of one resource that overlap go to rows of their own, named "host", "host (2)", ...
    """
    spans = list(timeline)
    hosts = _host_resources(spans)
    ipus = {span.resource: span.ipu for span in spans if span.ipu is not None}
    rows: list[Row] = []
    for resource in sorted({span.resource for span in spans}, key=lambda name: (
        hosts.get(name, len(HOST_KINDS)), ipus.get(name, math.inf), name
    )):  # fmt: skip
        lanes = _lanes([span for span in spans if span.resource == resource])
        rows += [Row(resource if not n else f"{resource} ({n + 1})", lane) for n, lane in enumerate(lanes)]
    return tuple(rows)


def device_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of what is not the host, with times from where the device begins."""
    spans = list(timeline)
    hosts = _host_resources(spans)
    own = [span for span in spans if span.resource not in hosts]
    begin = min((span.start for span in own), default=0.0)
    return all_rows(replace(span, start=span.start - begin) for span in own)


def host_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of the host, and one for the device as a whole: from where it begins to where it ends."""
    spans = list(timeline)
    hosts = _host_resources(spans)
    own = all_rows(span for span in spans if span.resource in hosts)
    device = [span for span in spans if span.resource not in hosts]
    if not device:
        return own
    begin, end = min(span.start for span in device), max(span.end for span in device)
    return (*own, Row("device", (Span("device", DEVICE_WORKS, begin, end - begin),)))


def _grouped(ops: Iterable[OpProfile], key: Callable[[OpProfile], str]) -> tuple[Group, ...]:
    cycles: dict[str, float] = {}
    counts: dict[str, int] = {}
    for op in ops:
        name = key(op)
        cycles[name] = cycles.get(name, 0.0) + cycles_per_call(op)
        counts[name] = counts.get(name, 0) + 1
    every = sum(cycles.values())
    names = sorted(cycles, key=lambda name: -cycles[name])
    return tuple(Group(name, cycles[name], cycles[name] / every if every else 0.0, counts[name]) for name in names)


def _host_resources(spans: Iterable[Span]) -> dict[str, int]:
    """Return the resources of the host with their rank among them: those that load come first."""
    found: dict[str, int] = {}
    for span in spans:
        if span.kind in HOST_KINDS:
            rank = HOST_KINDS.index(span.kind)
            found[span.resource] = min(found.get(span.resource, rank), rank)
    return found


def _lanes(spans: Iterable[Span]) -> list[tuple[Span, ...]]:
    """Put each span into the first lane that is free when it starts."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.seconds)):
        free = next((lane for lane in lanes if lane[-1].end <= span.start + _CLOSE_SECONDS), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return [tuple(lane) for lane in lanes]
