"""The modules of a program as a tree, in which shares add up; equal neighbours in a list become one module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ipu_model.predict.profile import OpProfile, Profile

Scoped: TypeAlias = tuple[OpProfile, list[str]]
"""An op, and the names of the modules around it below the one at hand."""
_WORK = attrgetter("part", "phase", "family", "operands", "results", "executions", "recomputations")
_HALF = 0.5
_FEW = 8


class Passes(NamedTuple):
    """Cycles of one call on all IPUs, by the pass in which they are spent."""

    forward: float = 0.0
    recompute: float = 0.0
    backward: float = 0.0
    update: float = 0.0

    @classmethod
    def together(cls, passes: Iterable[Passes]) -> Passes:
        return cls(*map(sum, zip(cls(), *passes)))


@dataclass(frozen=True)
class FoldedOp:
    """An op and those like it in modules folded with its own; `passes` and `flops` are of all of them in one call."""

    op: OpProfile
    count: int
    passes: Passes
    flops: float


@dataclass(frozen=True)
class Module:
    """A module, or `count` equal ones ("0-23"), with its own `ops` and its children; "" is the path of the whole."""

    name: str
    path: str
    layer: str
    count: int
    ops: tuple[FoldedOp, ...]
    children: tuple[Module, ...]
    share: float
    ipus: tuple[int, ...]

    @cached_property
    def own(self) -> Passes:
        return Passes.together(op.passes for op in self.ops)

    @cached_property
    def passes(self) -> Passes:
        return Passes.together([self.own, *(child.passes for child in self.children)])

    @property
    def cycles(self) -> float:
        return sum(self.passes)

    @property
    def own_share(self) -> float:
        return self.share * sum(self.own) / self.cycles if self.cycles else 0.0


class Part(NamedTuple):
    """A part of the program for a short list: a module, or what a module does besides its children (`is_own`)."""

    name: str
    module: Module
    cycles: float
    share: float
    is_own: bool = False


def module_tree(profile: Profile) -> Module:
    """Return the tree of a program's modules, with everything that runs on the tiles in the passes and the update."""
    every = sum(op.cycles_per_call for op in profile.work)
    return _module("", "", [(op, op.scope.split(".")) for op in profile.work], profile.layers, every)


def main_parts(tree: Module, least: int = 5) -> tuple[Part, ...]:
    """Return the largest parts, taken apart until there are `least` and none is more than half without need."""
    parts = [_whole(tree)]
    while closed := [part for part in parts if part.module.children and not part.is_own]:
        largest = max(closed, key=lambda part: part.cycles)
        is_too_large = largest.share > _HALF and len(largest.module.children) <= _FEW
        if len(parts) >= least and not is_too_large:
            break
        parts.remove(largest)
        module = largest.module
        parts += map(_whole, module.children)
        if module.ops:
            own = f"{_title(module)}, its own ops"
            parts.append(Part(own, module, sum(module.own), module.own_share, is_own=True))
    return tuple(sorted(parts, key=lambda part: -part.cycles))


def what_of(op: OpProfile) -> str:
    """Return what an op does, without the path of its module."""
    return op.name.rpartition(": ")[2] or op.part or op.node


def _whole(module: Module) -> Part:
    return Part(_title(module), module, module.cycles, module.share)


def _title(module: Module) -> str:
    name = module.path or "the model"
    return f"{name} x {module.count}" if module.count > 1 else name


def _module(name: str, path: str, ops: Sequence[Scoped], layers: Mapping[str, str], every: float) -> Module:
    """Return a module with its equal children folded; all ops together take `every` cycles."""
    own: list[FoldedOp] = []
    below: dict[str, list[Scoped]] = {}
    for op, scope in ops:
        names = list(filter(None, scope))
        if names:
            below.setdefault(names[0], []).append((op, names[1:]))
        else:
            own.append(FoldedOp(op, 1, _passes(op), float(op.flops * op.executions)))
    children = [_module(child, _joined(path, child), theirs, layers, every) for child, theirs in below.items()]
    ipus = tuple(sorted({op.ipu for op, _ in ops}))
    made = Module(name, path, layers.get(path, ""), 1, tuple(own), _folded(children, path), 0.0, ipus)
    return replace(made, share=made.cycles / every if every else 0.0)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _passes(op: OpProfile) -> Passes:
    again = op.cycles * op.recomputations
    once = op.cycles_per_call - again
    if op.phase == "update":
        return Passes(update=once)
    return Passes(backward=once) if op.phase == "backward" else Passes(forward=once, recompute=again)


def _folded(modules: Sequence[Module], path: str) -> tuple[Module, ...]:
    """Return modules with neighbours that have numbers for names and do the same as one."""
    folded: list[Module] = []
    for (is_numbered, _), group in groupby(modules, key=lambda module: (module.name.isdigit(), _signature(module))):
        alike = list(group)
        if is_numbered and len(alike) > 1:
            name = f"{alike[0].name}-{alike[-1].name}"
            alike = [_merged(alike, name, _joined(path, name))]
        folded += alike
    return tuple(folded)


def _merged(alike: Sequence[Module], name: str, path: str) -> Module:
    ops = tuple(
        FoldedOp(
            same[0].op,
            sum(op.count for op in same),
            Passes.together(op.passes for op in same),
            sum(op.flops for op in same),
        )
        for same in zip(*(module.ops for module in alike))
    )
    children = tuple(
        _merged(same, same[0].name, f"{path}.{same[0].name}") for same in zip(*(module.children for module in alike))
    )
    count, share = sum(module.count for module in alike), sum(module.share for module in alike)
    ipus = tuple(sorted({ipu for module in alike for ipu in module.ipus}))
    return Module(name, path, alike[0].layer, count, ops, children, share, ipus)


def _signature(module: Module) -> tuple[object, ...]:
    """Return what equal modules have in common: the same ops on the same shapes, as often, in the same children."""
    ops = tuple((what_of(folded.op), *_WORK(folded.op), folded.count) for folded in module.ops)
    return (module.layer, ops, tuple((child.name, child.count, _signature(child)) for child in module.children))
