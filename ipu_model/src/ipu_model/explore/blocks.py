"""The modules at which a model can be split, its repeated blocks, and the program that is split at some of them."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from ipu_model.errors import Error
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings
from ipu_model.predict.program import Program, remembered
from ipu_model.predict.recomputation import recomputation_over
from ipu_model.step import Op, Phase, Placement, Step, with_ops

SMALLEST_SHARE = 0.03
"""A module that costs less than this share of the model is not divided into its parts."""
_FEWEST_OPS = 6
"""Modules with fewer forward ops are no blocks: a checkpoint after each of them would keep everything."""


def modules_of(scope: str) -> tuple[str, ...]:
    """Return the names of a module and of all modules around it: "a.b" is in "a" and "a.b"."""
    parts = scope.split(".") if scope else []
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _nearest(name: str, scopes: Iterable[str]) -> str:
    known = dict.fromkeys(module for scope in scopes for module in modules_of(scope))
    return ", ".join(difflib.get_close_matches(name, known, 3)) or "none"


@dataclass(frozen=True)
class Unit:
    """A module whose ops stay on one IPU, at which a block can begin, and its scopes."""

    name: str
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class WorkOfScopes:
    """What the ops of each module take for a micro-batch: cycles of both passes, and the most temporary bytes."""

    forward: dict[str, float]
    backward: dict[str, float]
    temporary: dict[str, float]


@remembered
def work_of_scopes(step: Step, settings: CostSettings) -> WorkOfScopes:
    work = WorkOfScopes(defaultdict(float), defaultdict(float), defaultdict(float))
    for op in costs_of(step, settings).ops:
        cycles = work.forward if op.phase is Phase.FORWARD else work.backward
        cycles[op.scope] += settings.device.total(op.work.cycles)
        work.temporary[op.scope] = max(work.temporary[op.scope], op.work.temporary_bytes)
    return work


@remembered
def units_of(step: Step, settings: CostSettings) -> tuple[Unit, ...]:
    """Return the modules of a model in the order in which its forward pass first reaches them."""
    work = work_of_scopes(step, settings)
    scopes = dict.fromkeys((*(op.scope for op in step.forward), *work.backward))
    cost = {scope: work.forward.get(scope, 0.0) + work.backward.get(scope, 0.0) for scope in scopes}
    groups = _divided(tuple(cost), 0, cost, SMALLEST_SHARE * sum(cost.values()))
    startable = _startable(groups, times_entered(step))
    return tuple(Unit(_called(name, scopes[0], cost), scopes) for name, scopes in startable)


def _divided(scopes: Sequence[str], depth: int, cost: Mapping[str, float], least: float) -> list[tuple[str, ...]]:
    """Group scopes that follow one another and agree up to `depth`, and divide the groups that cost a lot."""
    divided: list[tuple[str, ...]] = []
    for _, alike in groupby(scopes, lambda scope: scope.split(".")[:depth]):
        group = tuple(alike)
        deeper = any(scope.count(".") >= depth for scope in group)
        if len(group) > 1 and deeper and sum(cost[scope] for scope in group) > least:
            divided += _divided(group, depth + 1, cost, least)
        else:
            divided.append(group)
    return divided


def _startable(groups: Sequence[tuple[str, ...]], entered: Mapping[str, int]) -> list[tuple[str, tuple[str, ...]]]:
    """Name the groups, and merge those at which no block can begin (of parents, or repeated) with the one before."""
    named: list[tuple[str, tuple[str, ...]]] = []
    names = [_common(scopes) for scopes in groups]
    for name, scopes in zip(names, groups, strict=True):
        is_parent = not name or any(other.startswith(f"{name}.") for other in names)
        if named and (is_parent or entered.get(name, 0) != 1):
            named[-1] = (named[-1][0], named[-1][1] + scopes)
        else:
            named.append((name, scopes))
    return named


def _common(scopes: Sequence[str]) -> str:
    """Return the deepest module that holds all of `scopes`; a parent's own ops come after the first one."""
    around = reversed(modules_of(scopes[0]))
    return next((name for name in around if all(f"{scope}.".startswith(f"{name}.") for scope in scopes)), scopes[0])


def _called(name: str, scope: str, scopes: Container[str]) -> str:
    """Return the outermost module from `name` down to `scope` that has ops of its own.

    Such a module is certain to be called. An `nn.ModuleList` never is, so that no block can begin there. Nothing runs
    between the call of a module without ops of its own and that of the first module in it.
    """
    return next((module for module in modules_of(scope) if len(module) >= len(name) and module in scopes), scope)


def scopes_of_variables(step: Step) -> Mapping[str, str]:
    """Return the module that reads each variable first, by the name of the variable."""
    return {v.name: step.readers[v.tensor][0].scope for v in step.variables if v.tensor in step.readers}


@remembered
def times_entered(step: Step) -> Counter[str]:
    """Return how often the forward pass goes from outside of a module into it, by the name of the module."""
    times: Counter[str] = Counter()
    for before, now in pairwise(("", *(op.scope for op in step.forward))):
        times.update(set(modules_of(now)) - set(modules_of(before)))
    return times


def blocks_at(value: str | Iterable[str] | Mapping[str, int]) -> Mapping[str, int]:
    """Return the IPUs of blocks by the modules at which they begin: names alone stand for IPU 1, 2, ..."""
    if isinstance(value, Mapping):
        return value
    return {name: ipu for ipu, name in enumerate([value] if isinstance(value, str) else value, 1)}


def split_before(program: Program, blocks: str | Iterable[str] | Mapping[str, int]) -> Program:
    """Return the program split into stages that begin at these modules, on IPUs as `blocks_at` reads them.

    As with `poptorch.BeginBlock`, forward ops belong to the stage that began last, backward ops to their forward op's,
    or else to that of their module's last one. Recomputation that is PopTorch's default stays the default.
    """
    ipus = [0, *blocks_at(blocks).values()]
    waiting = list(blocks_at(blocks))
    stage_of_op: dict[str, int] = {}
    stage_of_scope: dict[str, int] = {}
    begins: list[int] = []
    for op in program.step.forward:
        if waiting and f"{op.scope}.".startswith(f"{waiting[0]}."):
            waiting.pop(0)
            begins.append(op.forward_op or 0)
        stage_of_op[op.name] = stage_of_scope[op.scope] = len(begins)
    if waiting:
        raise Error(
            f"split: the forward pass does not reach a module {waiting[0]!r}"
            f"{' after the ones before it' if begins else ''}. Nearest: {_nearest(waiting[0], stage_of_scope)}."
        )
    for op in program.step.ops:
        if op.phase is not Phase.FORWARD:
            of_scope = stage_of_scope.get(op.scope, len(begins))
            stage_of_op[op.name] = of_scope if op.forward_op is None else bisect_right(begins, op.forward_op)

    places = {stage: Placement(str(stage), stage, ipus[stage]) for stage in stage_of_op.values()}

    def moved(op: Op) -> Op:
        place = places[stage_of_op[op.name]]
        return op if place == op.placement else replace(op, placement=place)

    step = with_ops(program.step, moved, tuple(places.values()))
    recomputation = recomputation_over(program, program.execution, len(set(ipus)))
    return replace(program, step=step, recomputation=recomputation, reserved_ipus=None)


def blocks_of(program: Program) -> dict[str, int]:
    """Return the IPU of each stage after the first by the module at which it begins.

    That is the outermost module which the stages before lack.
    """
    blocks: dict[str, int] = {}
    before: set[str] = set()
    scopes = {op.scope for op in program.step.forward}
    last = 0
    for op in program.step.forward:
        modules = modules_of(op.scope)
        if op.stage > last:
            last = op.stage
            name = _called(next((name for name in modules if name not in before), op.scope), op.scope, scopes)
            blocks[name] = op.ipu
        before.update(modules)
    return blocks


@remembered
def repeated_blocks(step: Step) -> tuple[str, ...]:
    """Return the modules in a row, called by numbers, that run the same ops (and several), each once."""
    kinds: dict[str, list[str]] = {}
    for op in step.forward:
        block = next((module for module in modules_of(op.scope) if module.rpartition(".")[2].isdecimal()), "")
        if block:
            kinds.setdefault(block, []).append(op.kind)
    large = Counter((block.rpartition(".")[0], tuple(ops)) for block, ops in kinds.items() if len(ops) >= _FEWEST_OPS)
    repeating = {row for (row, _), count in large.items() if count > 1}
    entered = times_entered(step)
    return tuple(block for block in kinds if block.rpartition(".")[0] in repeating and entered[block] == 1)


def has_checkpoints(step: Step) -> bool:
    """Whether the program marks tensors with `poptorch.recomputationCheckpoint` itself."""
    return any(op.hints.recomputation_checkpoint for op in step.ops)


def with_checkpoints(step: Step, modules: Iterable[str]) -> Step:
    """Return the step with `poptorch.recomputationCheckpoint` on the outputs of these modules, and on no others."""
    wanted = dict.fromkeys(modules)
    last: dict[str, str] = {}
    for op in step.forward:
        for module in modules_of(op.scope):
            if module in wanted and _leaves(op, module, step):
                last[module] = op.name
    for module in wanted:
        if module not in last:
            near = _nearest(module, (op.scope for op in step.forward))
            raise Error(f"checkpoints: the forward pass has no output of a module {module!r}. Nearest: {near}.")
    chosen = frozenset(last.values())

    def marked(op: Op) -> Op:
        is_chosen = op.name in chosen
        known = op.hints.recomputation_checkpoint == is_chosen
        return op if known else replace(op, hints=replace(op.hints, recomputation_checkpoint=is_chosen))

    return with_ops(step, marked)


def _leaves(op: Op, module: str, step: Step) -> bool:
    """Whether forward ops outside of the module read a result of `op`, or the program does."""
    return any(
        tensor.name in step.outputs
        or any(
            reader.phase is Phase.FORWARD and not f"{reader.scope}.".startswith(f"{module}.")
            for reader in step.readers.get(tensor.name, ())
        )
        for tensor in step.results_of(op)
    )
