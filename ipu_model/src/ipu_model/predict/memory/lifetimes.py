"""The lifetimes of a micro-batch's tensors: when each enters and leaves memory on every IPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from ipu_model.predict.memory.tensors import Fetched, Storages
from ipu_model.predict.memory.tiles import NOTHING, Label, Live, Spread
from ipu_model.predict.naming import naming_of
from ipu_model.predict.ops.contractions import GRADIENT_PARTS
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, VariableCost
from ipu_model.predict.order import Order
from ipu_model.predict.profile import ACTIVATIONS, GRADIENTS, STASHES, STREAMS, TEMPORARIES
from ipu_model.predict.program import Program
from ipu_model.predict.recomputation import OpRun, Pass
from ipu_model.step import Op, Source, Tensor

FORWARD: Final = Pass.FORWARD.value
RECOMPUTE: Final = Pass.RECOMPUTE.value
BACKWARD: Final = Pass.BACKWARD.value
UPDATE: Final = "update"


@dataclass(frozen=True)
class ScheduledOp(Label):
    """One op, or a part of one, while it runs: the tensors that it reads and makes, and its temporary data."""

    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    temporary: Spread = NOTHING


@dataclass(frozen=True)
class IpuSchedule:
    """What one IPU runs in order: forward ops, backward ops with those that run again, weight updates."""

    ops: tuple[ScheduledOp, ...] = ()

    def _first(self, *phases: str) -> int:
        """Return the place of the first op in one of `phases`; the number of ops if there is none."""
        return next((place for place, op in enumerate(self.ops) if op.phase in phases), len(self.ops))

    @cached_property
    def backward_start(self) -> int:
        """The place of the first op after the forward pass."""
        return self._first(RECOMPUTE, BACKWARD, UPDATE)

    @cached_property
    def cycle_end(self) -> int:
        """The place of the last op of a micro-batch."""
        return max(0, self._first(UPDATE) - 1)

    @property
    def end(self) -> int:
        """The place of the last op."""
        return max(0, len(self.ops) - 1)


@dataclass(frozen=True)
class UpdateCosts:
    """What each trainable variable costs: added to its accumulator, and updated."""

    accumulation: Mapping[str, VariableCost]
    update: Mapping[str, VariableCost]


def schedules_of(storages: Storages, order: Order, costs: UpdateCosts, fetched: Fetched) -> dict[int, IpuSchedule]:
    """Return the schedule of every IPU that has one: the ops of one micro-batch, and the updates."""
    scheduler = _Scheduler(storages, costs, fetched)
    for run in order.sequence:
        scheduler.run(run)
    for variable, cost in costs.update.items():
        scheduler.work_on(variable, cost, UPDATE)
    return {ipu: IpuSchedule(tuple(ops)) for ipu, ops in scheduler.ops.items()}


class _Scheduler:
    def __init__(self, storages: Storages, costs: UpdateCosts, fetched: Fetched) -> None:
        self.ops: dict[int, list[ScheduledOp]] = {}
        self._storages, self._costs, self._fetched = storages, costs, fetched
        self._naming = naming_of(storages.step)
        self._place = {op.name: place for place, op in enumerate(storages.step.ops)}
        self._changing = self._ops_by_maker()
        self._variables_after: dict[str | None, list[str]] = {}
        for variable, gradient in storages.step.gradients.items():
            self._variables_after.setdefault(self._finished_by(gradient), []).append(variable)

    def run(self, run: OpRun) -> None:
        """Schedule one execution of an op, and the accumulation of the gradients that it completes."""
        self._run_parts(self._storages.step.by_name[run.op], run.during.value)
        if run.during is not Pass.RECOMPUTE:
            for variable in self._variables_after.get(run.op, ()):
                if variable in self._costs.accumulation:
                    self.work_on(variable, self._costs.accumulation[variable], BACKWARD)

    def _run_parts(self, op: Op, phase: str) -> None:
        storages, parts = self._storages, self._storages.parts.get(op.name, [])
        if not parts:
            return
        reads, makes = storages.read_by(op), storages.made_by(op)
        tiles = storages.widest((*reads, *makes))
        fetched = [self._fetched.reading[root] for root in reads if root in self._fetched.reading]
        for index, part in enumerate(parts):
            made = tuple(root for root in makes if _made_in(storages.step.tensors[root], part.part, index))
            temporary = _joined(storages.space.temporary(part.work.temporary_bytes, tiles), fetched)
            name = self._naming.part(op.name, part.part)
            self.ops.setdefault(op.ipu, []).append(
                ScheduledOp(op.name, phase, part.part, name, op.stage, tuple(reads), made, temporary)
            )

    def work_on(self, variable: str, cost: VariableCost, phase: str) -> None:
        """Schedule the op that adds a gradient to its accumulator, or that updates a weight."""
        storages, updates = self._storages, phase == UPDATE
        gradient = storages.step.gradients[variable]
        root, producer = storages.root(gradient), storages.step.producer(gradient)
        fetched = self._fetched.update if updates else self._fetched.accumulation
        needs = storages.space.temporary(cost.work.temporary_bytes, storages.widest([root]))
        temporary = _joined(needs, fetched.get(variable, ()))
        reads = () if updates and variable in self._costs.accumulation else (root,)
        part = UPDATE_PART if updates else ACCUMULATION_PART
        stage = 0 if producer is None else producer.stage
        self.ops.setdefault(cost.ipu, []).append(
            ScheduledOp(gradient, phase, part, f"{variable}: {part}", stage, reads, (), temporary)
        )

    def _finished_by(self, gradient: str) -> str | None:
        """Return the op after which a gradient is complete: its name may stand for a view made later."""
        named, maker = self._storages.step.producer(gradient), self._storages.maker(self._storages.root(gradient))
        if named is None:
            return None
        changing = self._changing.get(maker.name, ()) if maker is not None else ()
        last = self._place[named.name]
        complete = (op.name for op in changing if self._place[op.name] <= last and op.name in self._storages.parts)
        return max(complete, key=self._place.__getitem__, default=named.name)

    def _ops_by_maker(self) -> dict[str, list[Op]]:
        """Map each op to those whose results live in what it made, itself included."""
        storages = self._storages
        ops: dict[str, list[Op]] = {}
        for op in storages.step.ops:
            made = storages.step.results_of(op)
            maker = storages.maker(storages.root(made[0].name)) if made else op
            if maker is not None:
                ops.setdefault(maker.name, []).append(op)
        return ops


def _made_in(tensor: Tensor, part: str, index: int) -> bool:
    """Whether a tensor is made in the part of that name: gradients of a convolution come one by one."""
    if tensor.name != tensor.producer and part in GRADIENT_PARTS:
        return tensor.index == GRADIENT_PARTS.index(part)
    return index == 0


def _joined(temporary: Spread, fetched: Sequence[Spread]) -> Spread:
    """Return temporary data together with tensors that are fetched while an op runs."""
    if not fetched:
        return temporary
    tiles = max(temporary.tiles if temporary is not NOTHING else 1, *(spread.tiles for spread in fetched))
    on_tile = temporary.on_tile + sum(spread.on_tile for spread in fetched)
    return Spread(on_tile, tiles, on_tile)


# --- lifetimes


class Borders:
    """The tensors that move between the IPUs of a program, and which of the kept ones wait off chip."""

    def __init__(self, program: Program, storages: Storages) -> None:
        self._program, self._storages = program, storages
        outputs = set(program.step.outputs)
        self.returned = [
            name for name in storages.step.tensors if name in outputs and storages.ipu(storages.root(name)) is not None
        ]
        # which other IPUs read a tensor
        self._readers: dict[str, set[int]] = {}
        for op in storages.step.ops if len(program.step.ipus) > 1 else ():
            for root in storages.read_by(op) if op.name in storages.parts else ():
                if storages.ipu(root) not in (None, op.ipu):
                    self._readers.setdefault(root, set()).add(op.ipu)

    def leaves(self, root: str, ipu: int) -> bool:
        """Whether a tensor made on `ipu` is read on another one."""
        return bool(self._readers.get(root, set()) - {ipu})

    def transfers(self, ipu: int) -> int:
        """Return how many tensors go to or come from other IPUs."""
        return sum(ipu in readers or self._storages.ipu(root) == ipu for root, readers in self._readers.items())

    def is_off_chip(self, root: str) -> bool:
        """Whether a tensor of the forward pass waits for the backward pass in streaming memory."""
        return self._program.locations.activations.is_off_chip(self._storages.step.tensors[root].elements)


class _Instance(NamedTuple):
    """A tensor of the forward pass (`again` false), or what the backward pass has of it.

    `drawn` is the place of the op before which it is drawn again from its seed; such a tensor lives for that op only.
    """

    root: str
    again: bool
    drawn: int | None = None


@dataclass
class _Lifetime:
    first: int
    last: int

    def until(self, place: int) -> None:
        self.last = max(self.last, place)


class Lifetimes:
    """The lifetimes on one IPU, from place to place in its schedule.

    In a pipeline, every stage except the last runs the backward pass of an older micro-batch than the forward pass
    before it: the backward pass reads its tensors from a stash, and only the stash lives between the two. Tensors for
    another IPU are kept until the copy at the end of the cycle; tensors from another IPU are present from the start of
    a cycle. Activations that are placed off chip, and have no stash, leave after the forward pass has last read them
    and come back when the backward pass first does. `elsewhere` are variables that live on other IPUs.
    """

    def __init__(
        self,
        ipu: int,
        schedule: IpuSchedule,
        storages: Storages,
        order: Order,
        borders: Borders,
        elsewhere: frozenset[str],
    ) -> None:
        self.schedule = schedule
        self._ipu, self._storages, self._order, self._borders = ipu, storages, order, borders
        self._elsewhere = elsewhere
        self._lifetimes: dict[_Instance, _Lifetime] = {}
        self._stash_slots: dict[str, int] = {}
        self._away: set[str] = set()  # activations that leave the chip between the passes, without a stash
        for place, op in enumerate(schedule.ops):
            for root in op.makes:
                self._extend(_Instance(root, op.phase == RECOMPUTE or storages.is_backward(root)), place, place)
            for root in op.reads:
                if root not in storages.residents or root in elsewhere:
                    self._read(root, op, place)
        if order.is_pipelined:
            for instance in self._lifetimes:
                if borders.leaves(instance.root, ipu) and instance.again == storages.is_backward(instance.root):
                    self._hold(instance)
        for name in borders.returned:
            self._hold(_Instance(storages.root(name), storages.is_backward(name)))

    def lives(self) -> list[Live]:
        """Return what an IPU holds besides what is always live: tensors, stashes and temporary data."""
        spread, contents = self._storages.spread, self._storages.contents
        lives = [
            Live(spread(instance.root), life.first, life.last, self._category(instance), contents(instance.root))
            for instance, life in self._lifetimes.items()
        ]
        end = self.schedule.cycle_end
        lives += [
            Live(spread(root).times(slots), 0, end, STASHES, contents(root)._replace(copies=slots))
            for root, slots in self._stash_slots.items()
            if not self._borders.is_off_chip(root)
        ]
        return lives + [
            Live(op.temporary, place, place, TEMPORARIES)
            for place, op in enumerate(self.schedule.ops)
            if op.temporary.on_tile
        ]

    @property
    def inputs(self) -> list[Spread]:
        """The tensors that the host streams to this IPU."""
        roots = [instance.root for instance in self._lifetimes if not instance.again]
        return [self._storages.spread(root) for root in roots if self._is_input(root)]

    @property
    def outputs(self) -> list[Spread]:
        """The tensors that the host streams from this IPU."""
        roots = dict.fromkeys(self._storages.root(name) for name in self._borders.returned)
        return [self._storages.spread(root) for root in roots if self._storages.ipu(root) == self._ipu]

    @property
    def off_chip_bytes(self) -> float:
        """Bytes of stashes and of other activations in streaming memory."""
        spread = self._storages.spread
        stashes = sum(
            spread(root).total * slots for root, slots in self._stash_slots.items() if self._borders.is_off_chip(root)
        )
        return stashes + sum(spread(root).total for root in self._away)

    def _read(self, root: str, op: ScheduledOp, place: int) -> None:
        is_backward = self._storages.is_backward(root)
        if op.phase == FORWARD or is_backward or root in self._elsewhere:
            self._extend(_Instance(root, is_backward), self._arrival(root, place), place)
        elif root in self._storages.drawn_again and op.phase == BACKWARD:
            self._extend(_Instance(root, True, drawn=place), place, place)
        elif self._runs_again(root, op.stage) or root in self._storages.drawn_again:
            self._extend(_Instance(root, True), place, place)
        elif slots := self._order.slots[op.stage]:
            self._stash_slots[root] = max(slots, self._stash_slots.get(root, 0))
            self._extend(_Instance(root, True), self.schedule.backward_start, place)
            # that of the newer micro-batch is stashed at the end of its forward pass
            self._extend(_Instance(root, False), 0, max(0, self.schedule.backward_start - 1))
        elif self._borders.is_off_chip(root):
            self._away.add(root)
            self._extend(_Instance(root, True), place, place)
        else:
            self._extend(_Instance(root, False), self._arrival(root, place), place)

    def _extend(self, instance: _Instance, first: int, last: int) -> None:
        """Have an instance live until `last`, and from `first` if it is new."""
        self._lifetimes.setdefault(instance, _Lifetime(first, last)).until(last)

    def _arrival(self, root: str, place: int) -> int:
        """Return the place at which a tensor arrives on this IPU; what is made here appears when it is first used."""
        comes_early = self._is_input(root) or (self._order.is_pipelined and self._storages.ipu(root) != self._ipu)
        return 0 if comes_early and place <= self.schedule.cycle_end else place

    def _hold(self, instance: _Instance) -> None:
        """Keep a tensor until the end of the cycle."""
        if instance in self._lifetimes and self._storages.ipu(instance.root) == self._ipu:
            self._lifetimes[instance].until(self.schedule.cycle_end)

    def _runs_again(self, root: str, stage: int) -> bool:
        maker = self._storages.maker(root)
        return maker is not None and maker.name in self._order.kept.again and maker.stage == stage

    def _is_input(self, root: str) -> bool:
        return self._storages.step.source(root) is Source.INPUT

    def _category(self, instance: _Instance) -> str:
        if self._is_input(instance.root) and not instance.again:
            return STREAMS
        return GRADIENTS if self._storages.is_backward(instance.root) else ACTIVATIONS
