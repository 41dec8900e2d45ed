"""Where to split a model over IPUs: units that stay together, and the most balanced ways to distribute them."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.costs import costs_of
from ipu_model.predict.order import device_bytes, held_tensors, stash_slots
from ipu_model.predict.program import Program, Recomputation
from ipu_model.predict.recomputation import kept_for_backward, recomputation_over
from ipu_model.predict.remembered import remembered
from ipu_model.predict.remote import variables_of
from ipu_model.step import Op, Phase, Placement, Step, with_ops

SMALLEST_SHARE = 0.05
"""A module that costs less than this share of the model is not divided into its parts."""


@dataclass(frozen=True)
class Unit:
    """A module whose ops stay on one IPU: its name, the scopes in it, and its cycles by kind of pass.

    A block can begin at the module of every unit but the first.
    """

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
        Unit(_called(name, scopes[0], order), scopes, _sum(forward, scopes), _sum(backward, scopes))
        for name, scopes in _startable(groups, times_entered(program.step))
    )


def _called(name: str, scope: str, scopes: Container[str]) -> str:
    """Return the outermost module from `name` down to `scope` that has ops of its own.

    Such a module is certain to be called. An `nn.ModuleList` never is, so that no block can begin there. Nothing runs
    between the call of a module without ops of its own and that of the first module in it.
    """
    return next((each for each in modules_of(scope) if len(each) >= len(name) and each in scopes), scope)


def _startable(groups: Sequence[tuple[str, ...]], entered: Mapping[str, int]) -> list[tuple[str, tuple[str, ...]]]:
    """Name the groups, and merge those at which no block can begin into the group before.

    No block can begin at ops that a parent runs itself, nor at a module that runs several times: a block begins
    whenever its module is called.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    names = [_common(scopes) for scopes in groups]
    for name, scopes in zip(names, groups, strict=True):
        is_parent = not name or any(other.startswith(f"{name}.") for other in names)
        if found and (is_parent or entered.get(name, 0) != 1):
            found[-1] = (found[-1][0], found[-1][1] + scopes)
        else:
            found.append((name, scopes))
    return found


@remembered
def times_entered(step: Step) -> dict[str, int]:
    """Return how often the forward pass goes from outside of a module into it, by the name of the module."""
    found: dict[str, int] = {}
    inside: tuple[str, ...] = ()
    for op in step.ops:
        if op.phase is not Phase.FORWARD:
            continue
        modules = modules_of(op.scope)
        for name in modules:
            found[name] = found.get(name, 0) + (name not in inside)
        inside = modules
    return found


def modules_of(scope: str) -> tuple[str, ...]:
    """Return the names of a module and of all modules around it."""
    parts = scope.split(".") if scope else []
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


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


class Balance(str, Enum):
    """What a split makes even: the time of the stages, or what they hold in memory."""

    TIME = "time"
    MEMORY = "memory"


def even_starts(program: Program, stages: int, by: Balance = Balance.TIME) -> tuple[str, ...] | None:
    """Return the modules at which to begin each stage after the first so that stages are as equal as possible.

    Stages other than the last run their forward pass twice if the program recomputes. A stage of an even split by
    memory holds its weights with their state, and the activations of all micro-batches that it stashes. `None` if the
    model has fewer modules than stages.
    """
    units = units_of(program)
    if len(units) < stages or stages < 1:
        return None
    costs = (_times if by is Balance.TIME else _bytes)(program, units, stages)
    return tuple(units[cut].name for cut in even_split(costs))


def _times(program: Program, units: Sequence[Unit], stages: int) -> list[list[float]]:
    """Return the cycles of each unit on each stage."""
    repeats = _recomputes(program, stages)
    return [
        [unit.forward * (2 if repeats and stage < stages - 1 else 1) + unit.backward for unit in units]
        for stage in range(stages)
    ]


def _recomputes(program: Program, stages: int) -> bool:
    """Whether stages recompute once there are so many, each on an IPU of its own."""
    return recomputation_over(program, program.execution, stages) is not Recomputation.NONE


def _bytes(program: Program, units: Sequence[Unit], stages: int) -> list[list[float]]:
    """Return the bytes that each unit adds to each stage: weights with their state, and activations kept."""
    held, kept = _held_by_scope(program), _kept_by_scope(program)
    recomputes = _recomputes(program, stages)
    found = []
    for stage in range(stages):
        slots = max(1, stash_slots(program.execution, stages, stage)) if program.training else 1
        times = 1 if recomputes else slots
        found.append([_sum(held, unit.scopes) + times * _sum(kept, unit.scopes) for unit in units])
    return found


def _held_by_scope(program: Program) -> dict[str, float]:
    """Return the bytes of variables with accumulators and state on the chip, by the scope that first reads them."""
    step, locations = program.step, program.locations
    tensor_of = {variable.name: variable.tensor for variable in step.variables}
    found: dict[str, float] = {}
    for variable in variables_of(program):
        readers = step.readers.get(tensor_of[variable.name], ())
        if readers:
            size = variable.weight + variable.gradient * program.accumulates
            size += variable.state * locations.optimiser.on_chip
            found[readers[0].scope] = found.get(readers[0].scope, 0.0) + size
    return found


def _kept_by_scope(program: Program) -> dict[str, float]:
    """Return the bytes of the forward results that are kept without recomputation, by the scope that makes them."""
    step = program.step
    kept = kept_for_backward(replace(program, recomputation=Recomputation.NONE))
    found: dict[str, float] = {}
    for root in dict.fromkeys(held.tensor.name for held in held_tensors(program, kept)):
        maker = step.producer(root)
        if maker is not None:
            found[maker.scope] = found.get(maker.scope, 0.0) + device_bytes(step.tensors[root])
    return found


def split_before(program: Program, names: Sequence[str]) -> Program:
    """Return the program split into stages that begin at these modules, each stage on an IPU of its own.

    As with `poptorch.BeginBlock`, forward ops belong to the stage that began last, and backward ops go with their
    forward ops. Where a step does not say which those are, they go with the last forward op of their module. A
    program that recomputes what PopTorch does by default follows that default on the new number of IPUs.

    Raises:
        Error: a module that the forward pass does not reach, or not after the ones named before it.
    """
    waiting = list(names)
    place_of: dict[str, Placement] = {}
    stage_of_scope: dict[str, int] = {}
    begins: list[int] = []
    stage = 0
    for op in program.step.ops:
        if op.phase is Phase.FORWARD:
            if waiting and f"{op.scope}.".startswith(f"{waiting[0]}."):
                waiting.pop(0)
                stage += 1
                begins.append(op.forward_op or 0)
            place_of[op.name] = _place(stage)
            stage_of_scope[op.scope] = stage
    if waiting:
        near = difflib.get_close_matches(waiting[0], _modules(stage_of_scope), 3)
        raise Error(
            f"split: the forward pass does not reach a module {waiting[0]!r}"
            f"{' after the ones before it' if stage else ''}. Nearest: {', '.join(near) or 'none'}."
        )
    for op in program.step.ops:
        if op.phase is not Phase.FORWARD:
            numbered = op.forward_op is not None
            of_scope = stage_of_scope.get(op.scope, stage)
            place_of[op.name] = _place(bisect_right(begins, op.forward_op or 0) if numbered else of_scope)
    return replace(
        program,
        step=placed(program.step, place_of),
        recomputation=recomputation_over(program, program.execution, stage + 1),
        reserved_ipus=None,
    )


def _place(stage: int) -> Placement:
    return Placement(str(stage), stage, stage)


def placed(step: Step, place_of: Mapping[str, Placement]) -> Step:
    """Return the step with the ops in `place_of` placed there, by name; other ops stay where they are.

    The block entries follow the new places in the order of `place_of`.
    """

    def moved(op: Op) -> Op:
        place = place_of.get(op.name, op.placement)
        return op if place == op.placement else replace(op, placement=place)

    return with_ops(step, moved, tuple(dict.fromkeys(place_of.values())))


def _modules(scopes: Iterable[str]) -> list[str]:
    """Return the names of all modules that hold ops, and of those that hold these."""
    return list(dict.fromkeys(name for scope in scopes for name in modules_of(scope)))


def stage_modules(program: Program) -> Iterator[str]:
    """Yield the module at which each stage after the first begins: the outermost one that the stage before lacks.

    A scope of the forward pass that a module around it already ran on the stage before begins inside of that module.
    """
    before: set[str] = set()
    scopes = {op.scope for op in program.step.ops if op.phase is Phase.FORWARD}
    seen = 0
    for op in program.step.ops:
        if op.phase is not Phase.FORWARD:
            continue
        modules = modules_of(op.scope)
        if op.stage > seen:
            seen = op.stage
            yield _called(next((name for name in modules if name not in before), op.scope), op.scope, scopes)
        before.update(modules)
