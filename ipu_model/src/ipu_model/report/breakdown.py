"""The tables of every report: phases, memory by category, ops by family and by part of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from ipu_model.profiling.data import OpProfile, PhaseCycles, Profile

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
_PARAMETERS = frozenset({"variables", "optimiser state", "gradient accumulators", "constants"})
_ACTIVATIONS = frozenset({"stashes", "activations", "gradients"})
_LEAST_GROUPS = 4


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


def memory_group(category: str) -> str:
    """Return the one of `MEMORY_GROUPS` that a category of memory belongs to."""
    if category in _PARAMETERS:
        return "parameters"
    if category in _ACTIVATIONS:
        return "activations"
    if category == "temporaries":
        return "temporary data"
    return "code" if category.endswith("code") or category == "vertex state" else "other"


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
    """Return the ops, those that take most cycles of a call first."""
    return tuple(sorted(profile.ops, key=lambda op: -cycles_per_call(op)))


def by_family(profile: Profile) -> tuple[Group, ...]:
    """Return the ops by the family of formulas that costed them, the most expensive first."""
    return _grouped(profile.ops, attrgetter("family"))


def by_scope(profile: Profile, least: int = _LEAST_GROUPS) -> tuple[Group, ...]:
    """Return the ops by submodule, the most expensive first.

    Names are cut at the depth at which there are at least `least` different ones ("model.layer3").
    """
    deepest = max((op.scope.count(".") + 1 for op in profile.ops), default=1)
    found: tuple[Group, ...] = ()
    for depth in range(1, deepest + 1):
        found = _grouped(profile.ops, lambda op, depth=depth: _cut(op.scope, depth))  # type: ignore[misc]
        if len(found) >= least:
            break
    return found


def fallback_share(profile: Profile) -> float:
    """Return the share of all ops' cycles that was costed without a formula of its own."""
    every = sum(map(cycles_per_call, profile.ops))
    return sum(map(cycles_per_call, profile.fallbacks)) / every if every else 0.0


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


def _cut(scope: str, depth: int) -> str:
    return ".".join(scope.split(".")[:depth]) or "(the model itself)"


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
