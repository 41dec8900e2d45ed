"""The modules of a program as a tree, in which shares add up; equal neighbours in a list become one module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ipu_model.predict.profile import OpProfile, Profile

_WORK = attrgetter("part", "phase", "family", "operands", "results", "executions", "recomputations")
_HALF = 0.5
_FEW = 8


class Called(NamedTuple):
    """A module by its path, with its ops and the names of the modules below it that are around each."""

    path: str
    ops: list[tuple[OpProfile, list[str]]]

    def below(self) -> dict[str, Called]:
        children: dict[str, Called] = {}
        for op, scope in self.ops:
            if scope:
                child = children.setdefault(scope[0], Called(_joined(self.path, scope[0]), []))
                child.ops.append((op, scope[1:]))
        return children


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
    called = Called("", [(op, [name for name in op.scope.split(".") if name]) for op in profile.work])
    return _module("", "", [called], profile.layers, every)


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


def _module(name: str, path: str, alike: Sequence[Called], layers: Mapping[str, str], every: float) -> Module:
    """Return equal modules as one; all ops of the program together take `every` cycles."""
    ops = tuple(
        FoldedOp(same[0], len(same), Passes.together(map(_passes, same)), sum(op.flops * op.executions for op in same))
        for same in zip(*([op for op, scope in called.ops if not scope] for called in alike))
    )
    below = [called.below() for called in alike]
    children = []
    for (is_numbered, _), group in groupby(below[0].items(), key=lambda child: _kind(child[0], child[1], layers)):
        names = [child for child, _ in group]
        for row in [names] if is_numbered else [[child] for child in names]:
            title = row[0] if len(row) == 1 else f"{row[0]}-{row[-1]}"
            those = [of_one[child] for of_one in below for child in row]
            children.append(_module(title, _joined(path, title), those, layers, every))
    ipus = tuple(sorted({op.ipu for called in alike for op, _ in called.ops}))
    made = Module(name, path, layers.get(alike[0].path, ""), len(alike), ops, tuple(children), 0.0, ipus)
    return replace(made, share=made.cycles / every if every else 0.0)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _passes(op: OpProfile) -> Passes:
    again = op.cycles * op.recomputations
    once = op.cycles_per_call - again
    if op.phase == "update":
        return Passes(update=once)
    return Passes(backward=once) if op.phase == "backward" else Passes(forward=once, recompute=again)


def _kind(name: str, called: Called, layers: Mapping[str, str]) -> tuple[bool, object]:
    """Return whether a module has a number for a name, and what it has in common with those that do the same."""
    ops = sorted(called.ops, key=lambda op: op[1])
    own = tuple((scope, layers.get(".".join((called.path, *scope))), what_of(op), _WORK(op)) for op, scope in ops)
    return name.isdigit(), (layers.get(called.path), own)
