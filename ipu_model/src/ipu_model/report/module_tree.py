"""The modules of a program as a tree: what each costs, with equal layers folded into one.

The cycles of a module are those of its own ops and of its children, so that shares add up from the leaves to the root.
Neighbouring layers of a list that do the same ("encoder.layers.0" to "encoder.layers.23") become one module that counts
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

from ipu_model.predict.profile import OpProfile, Profile

Signature: TypeAlias = tuple[object, ...]
_HALF = 0.5
_FEW = 8


class Passes(NamedTuple):
    """Cycles of one call on all IPUs, by the pass in which they are spent."""

    forward: float = 0.0
    recompute: float = 0.0
    backward: float = 0.0
    update: float = 0.0

    @property
    def total(self) -> float:
        """All cycles together."""
        return sum(self)


@dataclass(frozen=True)
class FoldedOp:
    """An op and those like it in the other modules that are folded with its own; `op` is the first of them.

    `passes` and `flops` are of all of them in one call.
    """

    op: OpProfile
    count: int
    passes: Passes
    flops: float

    @property
    def cycles(self) -> float:
        """Cycles of all of them in one call."""
        return self.passes.total

    @property
    def what(self) -> str:
        """What it does, without the module that does it: "weight gradient"."""
        return what_of(self.op)


@dataclass(frozen=True)
class Module:
    """A module of the program, or `count` equal ones that follow one another.

    `name` is its name in its parent ("layers", or "0-23" for several), `path` its full name ("" for the program as a
    whole), `layer` its class where that is known. `ops` are its own, in the order in which they run; those of its
    children are theirs. `share` is the part of the cycles of the whole tree.
    """

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
        """Cycles of its own ops in one call."""
        return _sum(op.passes for op in self.ops)

    @cached_property
    def passes(self) -> Passes:
        """Cycles of one call by pass, with those of its children."""
        return _sum([self.own, *(child.passes for child in self.children)])

    @property
    def cycles(self) -> float:
        """Cycles of one call, with those of its children."""
        return self.passes.total

    @cached_property
    def flops(self) -> float:
        """Multiplications and additions of contractions in one call, with those of its children."""
        return sum(op.flops for op in self.ops) + sum(child.flops for child in self.children)

    @property
    def own_share(self) -> float:
        """The part of the cycles of the whole tree that its own ops take."""
        return self.share * self.own.total / self.cycles if self.cycles else 0.0

    @cached_property
    def number_of_ops(self) -> int:
        """How many ops it stands for, with those of its children."""
        return sum(op.count for op in self.ops) + sum(child.number_of_ops for child in self.children)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """Yield it and everything below it with the depth of each: parents before their children."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


class Part(NamedTuple):
    """A part of the program for a short list: a module, or what a module does besides its children (`is_own`)."""

    name: str
    module: Module
    cycles: float
    share: float
    ops: int
    is_own: bool = False


def module_tree(profile: Profile) -> Module:
    """Return the tree of a program's modules, with everything that runs on the tiles in the passes and the update."""
    root = _Branch("", "")
    for op in profile.work:
        branch = root
        for name in filter(None, op.scope.split(".")):
            branch = branch.child(name)
        branch.ops.append(op)
    every = sum(op.cycles_per_call for op in profile.work)
    return _module(root, profile, every)


def main_parts(tree: Module, least: int = 5) -> tuple[Part, ...]:
    """Return at least `least` parts that make up the whole, if there are so many; the most expensive first.

    The largest part is taken apart until there are enough. Parts of more than half are taken apart too, unless they
    fall into too many small ones.
    """
    parts = [_whole(tree)]
    while True:
        largest = max((part for part in parts if _opens(part)), key=lambda part: part.cycles, default=None)
        if largest is None or (len(parts) >= least and not _too_large(largest)):
            break
        parts.remove(largest)
        parts += _taken_apart(largest.module)
    return tuple(sorted(parts, key=lambda part: -part.cycles))


def _too_large(part: Part) -> bool:
    return part.share > _HALF and len(part.module.children) <= _FEW


def _opens(part: Part) -> bool:
    return bool(part.module.children) and not part.is_own


def what_of(op: OpProfile) -> str:
    """Return what an op does, without the path of its module."""
    return op.name.rpartition(": ")[2] or op.part or op.node


def _whole(module: Module) -> Part:
    return Part(_title(module), module, module.cycles, module.share, module.number_of_ops)


def _taken_apart(module: Module) -> list[Part]:
    own = sum(op.count for op in module.ops)
    rest = Part(f"{_title(module)}, its own ops", module, module.own.total, module.own_share, own, is_own=True)
    return [*map(_whole, module.children), *([rest] if own else [])]


def _title(module: Module) -> str:
    name = module.path or "the model"
    return f"{name} x {module.count}" if module.count > 1 else name


# ------------------------------------------------------------------------------- growing the tree


@dataclass
class _Branch:
    """A module while ops are still being added."""

    name: str
    path: str
    ops: list[OpProfile] = field(default_factory=list)
    children: dict[str, _Branch] = field(default_factory=dict)

    def child(self, name: str) -> _Branch:
        """Return the child of that name, new if need be."""
        if name not in self.children:
            self.children[name] = _Branch(name, f"{self.path}.{name}" if self.path else name)
        return self.children[name]


def _module(branch: _Branch, profile: Profile, every: float) -> Module:
    """Return a finished module, whose equal children are folded."""
    ops = tuple(FoldedOp(op, 1, _passes(op), float(op.flops * op.executions)) for op in branch.ops)
    children = _folded([_module(child, profile, every) for child in branch.children.values()], branch.path)
    return _made(
        Module(branch.name, branch.path, profile.layers.get(branch.path, ""), 1, ops, children, 0.0, ()), every
    )


def _made(module: Module, every: float) -> Module:
    """Return a module with its share and the IPUs that it runs on."""
    ipus = {each.op.ipu for each in module.ops}.union(*(child.ipus for child in module.children))
    share = module.cycles / every if every else 0.0
    return Module(
        module.name, module.path, module.layer, module.count, module.ops, module.children, share, tuple(sorted(ipus))
    )


def _passes(op: OpProfile) -> Passes:
    again = op.cycles * op.recomputations
    once = op.cycles_per_call - again
    if op.phase == "update":
        return Passes(update=once)
    return Passes(backward=once) if op.phase == "backward" else Passes(forward=once, recompute=again)


def _sum(passes: Iterable[Passes]) -> Passes:
    return Passes(*map(sum, zip(Passes(), *passes)))


# ------------------------------------------------------------------------------- folding


def _folded(modules: Sequence[Module], path: str) -> tuple[Module, ...]:
    """Return modules with neighbours that have numbers for names and do the same as one."""
    found: list[Module] = []
    for (is_numbered, _), group in groupby(modules, key=lambda each: (each.name.isdigit(), _signature(each))):
        alike = list(group)
        found += [_together(alike, path)] if is_numbered and len(alike) > 1 else alike
    return tuple(found)


def _together(alike: Sequence[Module], path: str) -> Module:
    """Return equal modules as one that counts for all."""
    first, last = alike[0], alike[-1]
    name = f"{first.name}-{last.name.partition('-')[0]}" if len(alike) > 1 else first.name
    below = f"{path}.{name}" if path else name
    return _merged(alike, name, below)


def _merged(alike: Sequence[Module], name: str, path: str) -> Module:
    ops = tuple(
        FoldedOp(same[0].op, sum(each.count for each in same), _sum(s.passes for s in same), sum(s.flops for s in same))
        for same in zip(*(each.ops for each in alike))
    )
    children = tuple(
        _merged(same, same[0].name, f"{path}.{same[0].name}") for same in zip(*(each.children for each in alike))
    )
    count, share = sum(each.count for each in alike), sum(each.share for each in alike)
    ipus = tuple(sorted({ipu for each in alike for ipu in each.ipus}))
    return Module(name, path, alike[0].layer, count, ops, children, share, ipus)


def _signature(module: Module) -> Signature:
    """Return what equal modules have in common: the same ops on the same shapes, as often, in the same children."""
    ops = tuple(
        (what_of(o), o.part, o.phase, o.family, o.operands, o.results, o.executions, o.recomputations, each.count)
        for each in module.ops
        for o in (each.op,)
    )
    return (module.layer, ops, tuple((child.name, child.count, _signature(child)) for child in module.children))
