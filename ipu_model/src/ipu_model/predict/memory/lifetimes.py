"""The lifetimes of a micro-batch's tensors: when each enters and leaves memory on every IPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from ipu_model.predict.memory import categories
from ipu_model.predict.memory.tensors import Fetched, Storages
from ipu_model.predict.memory.tiles import NOTHING, Label, Live, Spread
from ipu_model.predict.naming import naming_of
from ipu_model.predict.ops.contractions import GRADIENT_PARTS
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, VariableCost
from ipu_model.predict.order import Order
from ipu_model.predict.program import Program
from ipu_model.predict.recomputation import OpRun, Pass
from ipu_model.step import Op, Source, Tensor

FORWARD: Final = Pass.FORWARD.value
RECOMPUTE: Final = Pass.RECOMPUTE.value
BACKWARD: Final = Pass.BACKWARD.value
UPDATE: Final = "update"


@dataclass(frozen=True)
class Moment(Label):
    """One op, or a part of one, while it runs: the tensors that it reads and makes, and its temporary data."""

    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    temporary: Spread = NOTHING


@dataclass(frozen=True)
class Moments:
    """The moments of one IPU in order: forward ops, backward ops with those that run again, weight updates."""

    all: tuple[Moment, ...]

    def first(self, *phases: str) -> int:
        """Return the place of the first moment in one of `phases`; the number of moments if there is none."""
        return next((i for i, moment in enumerate(self.all) if moment.phase in phases), len(self.all))

    @cached_property
    def backward_start(self) -> int:
        """The place of the first moment after the forward pass."""
        return self.first(RECOMPUTE, BACKWARD, UPDATE)

    @cached_property
    def cycle_end(self) -> int:
        """The place of the last moment of a micro-batch."""
        return max(0, self.first(UPDATE) - 1)


@dataclass(frozen=True)
class UpdateCosts:
    """What each trainable variable costs: added to its accumulator, and updated."""

    accumulation: Mapping[str, VariableCost]
    update: Mapping[str, VariableCost]


def moments_of(storages: Storages, order: Order, costs: UpdateCosts, fetched: Fetched) -> dict[int, Moments]:
    """Return the moments of every IPU that has any, in the order in which it runs the ops of one micro-batch."""
    writer = _Writer(storages, costs, fetched)
    for each in order.sequence:
        writer.run(each)
    writer.update()
    return {ipu: Moments(tuple(moments)) for ipu, moments in writer.moments.items()}


class _Writer:
    """Writes down the moments of all IPUs."""

    def __init__(self, storages: Storages, costs: UpdateCosts, fetched: Fetched) -> None:
        self.moments: dict[int, list[Moment]] = {}
        self._storages, self._costs, self._fetched = storages, costs, fetched
        self._naming = naming_of(storages.step)
        self._order = {op.name: place for place, op in enumerate(storages.step.ops)}
        self._members = self._ops_by_maker()
        self._gradients: dict[str | None, list[str]] = {}
        for variable, gradient in storages.step.gradients.items():
            self._gradients.setdefault(self._finished_by(gradient), []).append(variable)

    def run(self, run: OpRun) -> None:
        """Write the moments of one execution of an op."""
        self._write(self._storages.step.by_name[run.op], run.during.value)
        if run.during is Pass.RECOMPUTE:
            return
        for variable in self._gradients.get(run.op, ()):
            if variable in self._costs.accumulation:
                self._write_variable(variable, self._costs.accumulation[variable], BACKWARD)

    def update(self) -> None:
        """Write the updates of all weights."""
        for variable, cost in self._costs.update.items():
            self._write_variable(variable, cost, UPDATE)

    def _write(self, op: Op, phase: str) -> None:
        storages = self._storages
        reads, makes = storages.read_by(op), storages.made_by(op)
        parts = storages.parts.get(op.name, [])
        if not parts:
            return
        tiles = storages.widest((*reads, *makes))
        moments = self.moments.setdefault(op.ipu, [])
        fetched = self._fetched.by_reading(reads)
        for index, part in enumerate(parts):
            made = tuple(root for root in makes if _made_in(storages.step.tensors[root], part.part, index))
            needs = storages.room.temporary(part.work.temporary_bytes, tiles)
            name = self._naming.part(op.name, part.part)
            needed = _joined(needs, fetched)
            moments.append(Moment(op.name, phase, part.part, name, op.stage, tuple(reads), made, needed))

    def _finished_by(self, gradient: str) -> str | None:
        """Return the op after which a gradient is complete: its name may stand for a view made later."""
        named, maker = self._storages.step.producer(gradient), self._storages.maker(self._storages.root(gradient))
        if named is None:
            return None
        changing = self._members.get(maker.name, ()) if maker is not None else ()
        last = self._order[named.name]
        complete = (o.name for o in changing if self._order[o.name] <= last and o.name in self._storages.parts)
        return max(complete, key=self._order.__getitem__, default=named.name)

    def _write_variable(self, variable: str, cost: VariableCost, phase: str) -> None:
        """Write the moment that adds a gradient to its accumulator, or that updates a weight."""
        storages = self._storages
        gradient = storages.step.gradients[variable]
        root, made_by = storages.root(gradient), storages.step.producer(gradient)
        stage = 0 if made_by is None else made_by.stage
        tiles = storages.widest([root])
        needs = storages.room.temporary(cost.work.temporary_bytes, tiles)
        away = self._fetched.by_update(variable) if phase == UPDATE else self._fetched.by_accumulation(variable)
        moments = self.moments.setdefault(cost.ipu, [])
        reads = (root,) if phase != UPDATE or variable not in self._costs.accumulation else ()
        part = UPDATE_PART if phase == UPDATE else ACCUMULATION_PART
        needed = _joined(needs, away)
        moments.append(Moment(gradient, phase, part, f"{variable}: {part}", stage, reads, (), needed))

    def _ops_by_maker(self) -> dict[str, list[Op]]:
        """Map each op to those whose results live in what it made, itself included."""
        storages = self._storages
        found: dict[str, list[Op]] = {}
        for op in storages.step.ops:
            made = storages.step.results_of(op)
            maker = storages.maker(storages.root(made[0].name)) if made else op
            if maker is not None:
                found.setdefault(maker.name, []).append(op)
        return found


def _made_in(tensor: Tensor, part: str, index: int) -> bool:
    """Whether a tensor is made in the part of that name: gradients of a convolution come one by one."""
    if tensor.name != tensor.producer and part in GRADIENT_PARTS:
        return tensor.index == GRADIENT_PARTS.index(part)
    return index == 0


def _joined(temporary: Spread, fetched: Iterable[Spread]) -> Spread:
    """Return temporary data together with tensors that are fetched for a moment."""
    extra = list(fetched)
    if not extra:
        return temporary
    tiles = max(temporary.tiles if temporary is not NOTHING else 1, *(each.tiles for each in extra))
    on_tile = temporary.on_tile + sum(each.on_tile for each in extra)
    return Spread(on_tile, tiles, on_tile)


# ------------------------------------------------------------------------------- lifetimes


class Borders:
    """The tensors that move between the IPUs of a program, and which of the kept ones wait off chip."""

    def __init__(self, program: Program, storages: Storages) -> None:
        self._program, self._storages = program, storages
        names = set(program.step.outputs)
        self.returned = [
            name for name in storages.step.tensors if name in names and storages.ipu(storages.root(name)) is not None
        ]
        self._leaving = _leaving(storages) if len(program.step.ipus) > 1 else {}

    def leaves(self, root: str, ipu: int) -> bool:
        """Whether a tensor made on `ipu` is read on another one."""
        return bool(self._leaving.get(root, set()) - {ipu})

    def transfers(self, ipu: int) -> int:
        """Return how many tensors go to or come from other IPUs."""
        return sum(ipu in readers or self._storages.ipu(root) == ipu for root, readers in self._leaving.items())

    def is_off_chip(self, root: str) -> bool:
        """Whether a tensor of the forward pass waits for the backward pass in streaming memory."""
        return self._program.locations.activations.is_off_chip(self._storages.step.tensors[root].elements)


def _leaving(storages: Storages) -> dict[str, set[int]]:
    """Map each tensor that other IPUs read to those IPUs."""
    found: dict[str, set[int]] = {}
    for op in storages.step.ops:
        if op.name not in storages.parts:
            continue
        for root in storages.read_by(op):
            if storages.ipu(root) not in (None, op.ipu):
                found.setdefault(root, set()).add(op.ipu)
    return found


class _Instance(NamedTuple):
    """A tensor of the forward pass (`again` false), or what the backward pass has of it.

    `drawn` is the moment that draws it again from its seed; such a tensor lives for that moment only.
    """

    root: str
    again: bool
    drawn: int | None = None


@dataclass
class _Lifetime:
    first: int
    last: int

    def until(self, moment: int) -> None:
        self.last = max(self.last, moment)


class Lifetimes:
    """The lifetimes on one IPU.

    In a pipeline, every stage except the last runs the backward pass of an older micro-batch than the forward pass
    before it: the backward pass reads its tensors from a stash, and only the stash lives between the two. Tensors for
    another IPU are kept until the copy at the end of the cycle; tensors from another IPU are present from the start of
    a cycle. Activations that are placed off chip, and have no stash, leave after the forward pass has last read them
    and come back when the backward pass first does. `elsewhere` are variables that live on other IPUs.
    """

    def __init__(
        self, ipu: int, moments: Moments, storages: Storages, order: Order, borders: Borders, elsewhere: frozenset[str]
    ) -> None:
        self._ipu, self._moments, self._storages, self._order, self._borders = ipu, moments, storages, order, borders
        self._elsewhere = elsewhere
        self._found: dict[_Instance, _Lifetime] = {}
        self.stashed: dict[str, int] = {}
        self._away: set[str] = set()  # activations that leave the chip between the passes, without a stash
        for number, moment in enumerate(moments.all):
            for root in moment.makes:
                self._extend(_Instance(root, moment.phase == RECOMPUTE or storages.is_backward(root)), number, number)
            for root in moment.reads:
                if not self._is_resident(root):
                    self._read(root, moment, number)
        if order.is_pipelined:
            self._wait_for_copies()
        for name in borders.returned:
            self._hold(_Instance(storages.root(name), storages.is_backward(name)))

    @property
    def labels(self) -> tuple[Label, ...]:
        """What each moment is called."""
        return self._moments.all

    @property
    def last_moment(self) -> int:
        """The place of the last moment."""
        return max(0, len(self._moments.all) - 1)

    def lives(self) -> list[Live]:
        """Return what an IPU holds besides what is always live: tensors, stashes and temporary data."""
        spread, contents = self._storages.spread, self._storages.contents
        found = [
            Live(spread(i.root), life.first, life.last, self._category(i), contents(i.root))
            for i, life in self._found.items()
        ]
        end = self._moments.cycle_end
        found += [
            Live(spread(root).times(slots), 0, end, categories.STASHES, contents(root)._replace(copies=slots))
            for root, slots in self.stashed.items()
            if not self._borders.is_off_chip(root)
        ]
        for number, moment in enumerate(self._moments.all):
            if moment.temporary.on_tile:
                found.append(Live(moment.temporary, number, number, categories.TEMPORARIES))
        return found

    @property
    def inputs(self) -> list[Spread]:
        """The tensors that the host streams to this IPU."""
        own = [i.root for i in self._found if self._is_input(i.root) and not i.again]
        return [self._storages.spread(root) for root in own]

    @property
    def outputs(self) -> list[Spread]:
        """The tensors that the host streams from this IPU."""
        roots = dict.fromkeys(self._storages.root(name) for name in self._borders.returned)
        return [self._storages.spread(root) for root in roots if self._storages.ipu(root) == self._ipu]

    @property
    def off_chip_bytes(self) -> float:
        """Bytes of stashes and of other activations in streaming memory."""
        spread = self._storages.spread
        stashes = sum(spread(root).total * n for root, n in self.stashed.items() if self._borders.is_off_chip(root))
        return stashes + sum(spread(root).total for root in self._away)

    def _read(self, root: str, moment: Moment, number: int) -> None:
        is_backward = self._storages.is_backward(root)
        if moment.phase == FORWARD or is_backward or root in self._elsewhere:
            self._extend(_Instance(root, is_backward), self._arrival(root, number), number)
        elif root in self._storages.drawn_again and moment.phase == BACKWARD:
            self._extend(_Instance(root, True, drawn=number), number, number)
        elif self._runs_again(root, moment.stage) or root in self._storages.drawn_again:
            self._extend(_Instance(root, True), number, number)
        elif slots := self._order.slots[moment.stage]:
            self.stashed[root] = max(slots, self.stashed.get(root, 0))
            self._extend(_Instance(root, True), self._backward_start, number)
            self._keep_for_stash(root)
        elif self._borders.is_off_chip(root):
            self._away.add(root)
            self._extend(_Instance(root, True), number, number)
        else:
            self._extend(_Instance(root, False), self._arrival(root, number), number)

    def _extend(self, instance: _Instance, first: int, last: int) -> None:
        life = self._found.get(instance)
        if life is None:
            self._found[instance] = _Lifetime(first, last)
        else:
            life.until(last)

    def _arrival(self, root: str, number: int) -> int:
        """Return the moment at which a tensor arrives on this IPU; what is made here appears when it is first used."""
        comes_early = self._is_input(root) or (self._order.is_pipelined and self._storages.ipu(root) != self._ipu)
        return 0 if comes_early and number <= self._moments.cycle_end else number

    def _keep_for_stash(self, root: str) -> None:
        """Keep the tensor of the newer micro-batch until the end of its forward pass, when it is stashed."""
        end = max(0, self._backward_start - 1)
        instance = _Instance(root, False)
        if instance not in self._found:
            self._found[instance] = _Lifetime(0, end)
        self._found[instance].until(end)

    def _wait_for_copies(self) -> None:
        for instance in self._found:
            root = instance.root
            if self._borders.leaves(root, self._ipu) and instance.again == self._storages.is_backward(root):
                self._hold(instance)

    def _hold(self, instance: _Instance) -> None:
        """Keep a tensor until the end of the cycle."""
        if instance in self._found and self._storages.ipu(instance.root) == self._ipu:
            self._found[instance].until(self._moments.cycle_end)

    @cached_property
    def _backward_start(self) -> int:
        return self._moments.backward_start

    def _runs_again(self, root: str, stage: int) -> bool:
        maker = self._storages.maker(root)
        return maker is not None and maker.name in self._order.kept.again and maker.stage == stage

    def _is_resident(self, root: str) -> bool:
        return root in self._storages.residents and root not in self._elsewhere

    def _is_input(self, root: str) -> bool:
        return self._storages.step.source(root) is Source.INPUT

    def _category(self, instance: _Instance) -> str:
        if self._is_input(instance.root) and not instance.again:
            return categories.STREAMS
        return categories.GRADIENTS if self._storages.is_backward(instance.root) else categories.ACTIVATIONS
