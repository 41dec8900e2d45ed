"""Where to split a model over IPUs: units that stay together, and the most even way to distribute them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipu_model.errors import Error
from ipu_model.predict.costs import costs_of
from ipu_model.predict.program import Program, Recomputation
from ipu_model.predict.recomputation import kept_for_backward
from ipu_model.step import Op, Phase, Placement, Step, with_ops

SMALLEST_SHARE = 0.05
"""A module that costs less than this share of the model is not divided into its parts."""


@dataclass(frozen=True)
class Unit:
    """A module whose ops stay on one IPU: its name, the scopes in it, and its cycles by kind of pass."""

    name: str
    scopes: tuple[str, ...]
    forward: float
    backward: float


def units_of(program: Program) -> tuple[Unit, ...]:
    """Return the modules of a model in the order in which its forward pass first reaches them."""
    forward, backward = (_cycles_by_scope(program, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    order = dict.fromkeys(op.scope for op in program.step.ops if op.phase is Phase.FORWARD)
    order.update(dict.fromkeys(backward))
    least = SMALLEST_SHARE * (sum(forward.values()) + sum(backward.values()))
    groups = _divided(tuple(order), 0, {s: forward.get(s, 0.0) + backward.get(s, 0.0) for s in order}, least)
    return tuple(
        Unit(name, scopes, _sum(forward, scopes), _sum(backward, scopes)) for name, scopes in _startable(groups)
    )


def _startable(groups: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Name the groups, and merge ops that a parent runs itself into the group before: no block can begin there."""
    found: list[tuple[str, tuple[str, ...]]] = []
    names = [_common(scopes) for scopes in groups]
    for name, scopes in zip(names, groups, strict=True):
        is_parent = not name or any(other.startswith(f"{name}.") for other in names)
        if is_parent and found:
            found[-1] = (found[-1][0], found[-1][1] + scopes)
        else:
            found.append((name, scopes))
    return found


def _sum(cycles: Mapping[str, float], scopes: Iterable[str]) -> float:
    return sum(cycles.get(scope, 0.0) for scope in scopes)


def _cycles_by_scope(program: Program, phase: Phase) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in costs_of(program.step, program.settings).of(phase=phase):
        found[op.scope] = found.get(op.scope, 0.0) + program.settings.device.total(op.work.cycles)
    return found


def _divided(scopes: Sequence[str], depth: int, cost: Mapping[str, float], least: float) -> list[tuple[str, ...]]:
    """Group scopes that follow one another and agree up to `depth`, and divide the groups that cost a lot."""
    groups: list[list[str]] = []
    for scope in scopes:
        if groups and _prefix(groups[-1][-1], depth) == _prefix(scope, depth):
            groups[-1].append(scope)
        else:
            groups.append([scope])
    found: list[tuple[str, ...]] = []
    for group in groups:
        deeper = any(scope.count(".") >= depth for scope in group)
        if len(group) > 1 and deeper and sum(cost[scope] for scope in group) > least:
            found += _divided(group, depth + 1, cost, least)
        else:
            found.append(tuple(group))
    return found


def _prefix(scope: str, depth: int) -> str:
    return ".".join(scope.split(".")[:depth])


def _common(scopes: Sequence[str]) -> str:
    """Return the deepest module that holds all of `scopes`; a parent's own ops come after the first one."""
    parts = [scope.split(".") for scope in scopes]
    shared = 0
    while all(len(p) > shared and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    return ".".join(parts[0][:shared]) or scopes[0]


def even_split(costs: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return where each stage after the first begins, so that the slowest stage is as fast as possible.

    `costs[stage][unit]` is the cost of a unit on that stage. Stages are filled in order and none is empty.
    Dynamic programming over (stage, first unit not yet placed).
    """
    stages, units = len(costs), len(costs[0])
    best: list[list[tuple[float, int]]] = [[(float("inf"), 0)] * (units + 1) for _ in range(stages)]
    for end in range(1, units + 1):
        best[0][end] = (sum(costs[0][:end]), 0)
    for stage in range(1, stages):
        for end in range(stage + 1, units + 1):
            tail = 0.0
            for start in range(end - 1, stage - 1, -1):
                tail += costs[stage][start]
                slowest = max(best[stage - 1][start][0], tail)
                if slowest < best[stage][end][0]:
                    best[stage][end] = (slowest, start)
    cuts: list[int] = []
    end = units
    for stage in range(stages - 1, 0, -1):
        end = best[stage][end][1]
        cuts.append(end)
    return tuple(reversed(cuts))


def even_starts(program: Program, stages: int) -> tuple[str, ...] | None:
    """Return the modules at which to begin each stage after the first so that stage times are as equal as possible.

    Stages other than the last run their forward pass twice if the program recomputes. `None` if the model has
    fewer modules than stages.
    """
    units = units_of(program)
    if len(units) < stages or stages < 1:
        return None
    repeats = bool(kept_for_backward(program).again)
    costs = [
        [unit.forward * (2 if repeats and stage < stages - 1 else 1) + unit.backward for unit in units]
        for stage in range(stages)
    ]
    return tuple(units[cut].name for cut in even_split(costs))


def split_before(program: Program, names: Sequence[str]) -> Program:
    """Return the program split into stages that begin at these modules, each stage on an IPU of its own.

    As with `poptorch.BeginBlock`, ops belong to the stage that began last. The ops of one module stay together: a
    module that runs on both sides of a cut belongs to the later stage, with its backward ops. A training program that
    had one IPU starts to recompute when it gets several, as in PopTorch.

    Raises:
        Error: a module that the forward pass does not reach, or not after the ones named before it.
    """
    waiting = list(names)
    place_of: dict[str, Placement] = {}
    stage = 0
    for op in program.step.ops:
        if op.phase is Phase.FORWARD:
            if waiting and f"{op.scope}.".startswith(f"{waiting[0]}."):
                waiting.pop(0)
                stage += 1
            place_of[op.scope] = Placement(str(stage), stage, stage)
    scopes = dict.fromkeys(op.scope for op in program.step.ops)
    if waiting:
        near = difflib.get_close_matches(waiting[0], _modules(scopes), 3)
        raise Error(
            f"split: the forward pass does not reach a module {waiting[0]!r}"
            f"{' after the ones before it' if stage else ''}. Nearest: {', '.join(near) or 'none'}."
        )
    last = Placement(str(stage), stage, stage)
    place_of |= {scope: last for scope in scopes if scope not in place_of}
    several = stage > 0 and len(program.step.stages) == 1
    recomputes = several and program.training and program.recomputation is Recomputation.NONE
    return replace(
        program,
        step=placed(program.step, place_of),
        recomputation=Recomputation.PIPELINE if recomputes else program.recomputation,
        reserved_ipus=None,
    )


def placed(step: Step, place_of: Mapping[str, Placement]) -> Step:
    """Return the step with the ops of each scope in `place_of` placed there; other ops stay where they are.

    The block entries follow the new places in the order of `place_of`.
    """

    def moved(op: Op) -> Op:
        return replace(op, placement=place_of.get(op.scope, op.placement))

    return with_ops(step, moved, tuple(dict.fromkeys(place_of.values())))


def _modules(scopes: Iterable[str]) -> list[str]:
    """Return the names of all modules that hold ops, and of those that hold these."""
    parts = [scope.split(".") for scope in scopes if scope]
    return list(dict.fromkeys(".".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1)))


def stage_starts(program: Program) -> Iterator[str]:
    """Yield the scope of the first forward op of each stage after the first."""
    seen = 0
    for op in program.step.ops:
        if op.phase is Phase.FORWARD and op.stage > seen:
            seen = op.stage
            yield op.scope
