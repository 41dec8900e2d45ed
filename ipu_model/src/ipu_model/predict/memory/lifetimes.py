"""The tensors that occupy device memory, and when those of a micro-batch enter and leave it on every IPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from ipu_model.predict import profile
from ipu_model.predict.costs import Costs, OpCost, naming_of
from ipu_model.predict.device import Element
from ipu_model.predict.memory.tiles import Contents, Live, ScheduledOp, Spread, TileSpace
from ipu_model.predict.ops.contractions import CONTRACTIONS, GRADIENT_PARTS
from ipu_model.predict.ops.pointwise import dropout_masks
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, VariableCost
from ipu_model.predict.order import Order
from ipu_model.predict.program import Location, Program, remembered
from ipu_model.predict.recomputation import Pass
from ipu_model.predict.work import DeviceVariable, variables_of
from ipu_model.step import DType, Op, Source, Step, Tensor

# Second results that the device does not make: the gradient of a maximum compares inputs and outputs again.
_POOLS = ("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d")


@remembered
def _contents_of(step: Step) -> dict[str, Contents]:
    names = naming_of(step).tensors
    return {name: Contents(names[name], tensor.shape, tensor.dtype.name) for name, tensor in step.tensors.items()}


class Storages:
    """The tensors of one step by the one that their storage was made for (`roots`), and the costs of ops (`parts`)."""

    def __init__(self, step: Step, costs: Costs, space: TileSpace) -> None:
        self.step, self.space = step, space
        self.contents: Mapping[str, Contents] = _contents_of(step)
        self.parts: dict[str, list[OpCost]] = {}
        for op in costs.ops:
            self.parts.setdefault(op.node, []).append(op)
        self._layouts = costs.layouts
        self._spreads: dict[str, Spread] = {}
        stand_in: dict[str, str] = {}
        for tensor in step.tensors.values():
            if tensor.is_storage:
                stand_in[tensor.name] = self._stand_in(tensor, stand_in)
        self.roots = {tensor.name: stand_in[tensor.storage] for tensor in step.tensors.values()}
        # The tensors that stay: variables, the seed, and what is known when compiling.
        lasting = [name for name, source in step.storages.items() if source in (Source.VARIABLE, Source.SEED)]
        self.residents = frozenset((*self.constants, *lasting))
        # The results that IPUs make for the host.
        outputs = set(step.outputs)
        self.returned = [n for n in step.tensors if n in outputs and self.ipu(self.roots[n]) is not None]
        # Not kept for the backward pass, because they can be drawn again.
        self.drawn_again = frozenset(self.roots[mask.name] for mask in dropout_masks(step))
        # The weights of convolutions and matrix products: PopLibs cuts them less finely than other tensors, and lays
        # them out from the last tile of a plan on (lib/poplin/Convolution.cpp, calculateActivationsOrWeightsUsage).
        weights = {v.tensor for v in step.variables if len(step.tensors[v.tensor].shape) > 1}
        products = (op for op in step.ops if op.kind in CONTRACTIONS)
        self._multiplied = weights.intersection(root for op in products for root in self.read_by(op))

    def _stand_in(self, tensor: Tensor, known: Mapping[str, str]) -> str:
        """Return the tensor that the device keeps in place of this one: usually the tensor itself."""
        step, op = self.step, self.step.producer(tensor.name)
        if op is None:
            return tensor.name
        is_second = op.kind in _POOLS and tensor.index == 1 and tensor.name not in step.returned
        if is_second and all(reader.is_backward for reader in step.readers.get(tensor.name, ())):
            return next((result.name for result in step.results_of(op) if result.index == 0), tensor.name)
        operands = step.read_by(op)
        if op.name not in self.parts and operands and not op.makes_constant:
            return known[operands[0].storage]  # no code runs: the same tensor under another name or type
        return tensor.name

    def ipu(self, root: str) -> int | None:
        """Return the IPU on which a tensor is made; `None` for variables, inputs and constants."""
        maker = self.step.producer(root)
        return None if maker is None else maker.ipu

    def is_backward(self, name: str) -> bool:
        maker = self.step.producer(name)
        return maker is not None and maker.is_backward

    @cached_property
    def constants(self) -> list[str]:
        step, constants = self.step, list[str]()
        written = {self.roots.get(name) for op in step.ops for name in op.writes}
        for name in step.tensors:
            maker = step.producer(name)
            known = step.source(name) is Source.CONSTANT if maker is None else maker.makes_constant
            is_own = known and name not in written and self.roots[name] == name
            if is_own and (maker is None or maker.name not in self.parts):
                constants.append(name)
        return constants

    @cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """The other IPUs that read a tensor, for tensors that cross to another IPU."""
        readers: dict[str, set[int]] = {}
        for op in self.step.ops if len(self.step.ipus) > 1 else ():
            for root in self.read_by(op) if op.name in self.parts else ():
                if self.ipu(root) not in (None, op.ipu):
                    readers.setdefault(root, set()).add(op.ipu)
        return readers

    def spread(self, root: str) -> Spread:
        if root not in self._spreads:
            tensor = self.step.tensors[root]
            layout, element = self._layouts.get(root), Element.of(tensor.dtype)
            on_tile = layout.on_tile if layout is not None else self.space.device.spread(tensor.elements, element)
            multiplied = root in self._multiplied
            if multiplied:
                least = self.space.device.calibration.memory.least_weight_bytes_per_tile
                on_tile = max(on_tile, least / element.bytes)
            self._spreads[root] = self.space.place(tensor.elements, on_tile, element.bytes, at_end=multiplied)
        return self._spreads[root]

    def read_by(self, op: Op) -> list[str]:
        return list(dict.fromkeys(self.roots[tensor.name] for tensor in self.step.read_by(op)))

    def widest(self, roots: Iterable[str]) -> int:
        return max((self.spread(root).tiles for root in roots), default=1)


@dataclass(frozen=True)
class Resident:
    """A tensor that is always live; `fetched` comes to the tiles for each use, from streaming memory or replicas."""

    category: str
    ipu: int
    variable: str
    place: Spread | None
    fetched: Spread | None = None
    off_chip: float = 0.0
    contents: Contents | None = None


def residents(program: Program, storages: Storages) -> list[Resident]:
    residents = []
    for name in storages.constants:
        ipu = next((reader.ipu for reader in program.step.readers.get(name, ())), 0)
        residents.append(Resident(profile.CONSTANTS, ipu, "", storages.spread(name), contents=storages.contents[name]))
    for variable in variables_of(program):
        residents += [_resident(program, storages, variable, *kept) for kept in variable.kept]
    return residents


def _resident(program: Program, storages: Storages, variable: DeviceVariable, category: str, dtype: DType) -> Resident:
    """Return a tensor of this type and of the size of a variable, which lies as the variable does."""
    locations, tensor, ipu = program.locations, program.step.tensors[variable.tensor], variable.ipu
    location = {profile.VARIABLES: locations.weights, profile.OPTIMISER_STATE: locations.optimiser}.get(
        category, locations.accumulators
    )
    elements, element = tensor.elements, Element.of(tensor.dtype)
    whole = storages.spread(tensor.name).times(Element.of(dtype).bytes / element.bytes)
    sharded = program.replicas > 1 and location.is_sharded(elements)
    # Each replica has its part of what every tile holds (GCL's collective balanced reorder, which PopART uses).
    part = whole.times(1 / program.replicas) if sharded else whole
    if location.is_off_chip(elements):
        # With sharding, each replica fetches its part, and weights are put together from all parts.
        brought = whole if category == profile.VARIABLES else part
        return Resident(category, ipu, variable.name, None, brought, off_chip=part.total)
    brought_too = whole if sharded and category == profile.VARIABLES else None
    contents = Contents(variable.name, tensor.shape, dtype.name)
    return Resident(category, ipu, variable.name, part, brought_too, contents=contents)


# --- lifetimes


UPDATE: Final = "update"


class IpuSchedule:
    """What one IPU runs in order: forward ops, backward ops with those that run again, weight updates."""

    def __init__(self, ops: Sequence[ScheduledOp] = ()) -> None:
        self.ops = ops
        # The places of the first op after the forward pass, of the last one of a micro-batch, and of the last one.
        self.backward_start = next((place for place, op in enumerate(ops) if op.phase != Pass.FORWARD), len(ops))
        self.cycle_end = max(0, next((place for place, op in enumerate(ops) if op.phase == UPDATE), len(ops)) - 1)
        self.end = max(0, len(ops) - 1)


def schedules_of(
    storages: Storages, order: Order, costs: Sequence[VariableCost], residents: Iterable[Resident]
) -> dict[int, IpuSchedule]:
    step = storages.step
    tensor_of = {variable.name: variable.tensor for variable in step.variables}
    # What is brought to the tiles for an op and removed after it: by tensor for reading, by variable for all else.
    away = [(r.category, r.variable, r.fetched) for r in residents if r.fetched is not None]
    read = {tensor_of[variable]: spread for category, variable, spread in away if category == profile.VARIABLES}
    accumulated = {variable: [spread] for category, variable, spread in away if category == profile.ACCUMULATORS}
    updated: dict[str, list[Spread]] = defaultdict(list)
    for _, variable, spread in away:
        updated[variable].append(spread)
    accumulations = {cost.variable: cost for cost in costs if cost.part == ACCUMULATION_PART}
    ops: dict[int, list[ScheduledOp]] = defaultdict(list)
    sums = set[str]()
    summands = [(name, part) for name in accumulations for part in _summands(step, step.gradients[name], sums)]
    completed = _completed_gradients(storages, summands)
    for run in order.sequence:
        op = step.by_name[run.op]
        added = completed.get(op.name, ()) if run.during is not Pass.RECOMPUTE else ()
        if op.name in storages.parts and op.name not in sums:
            scheduled = _scheduled_parts(op, run.during.value, storages, read)
            if added and op.kind == "embedding_dense_backward" and not accumulated:
                # Only the rows that were looked up change in the accumulator (PopART, sparseaccumulatepattern.cpp).
                scheduled, added = [replace(part, makes=()) for part in scheduled], ()
            ops[op.ipu] += scheduled
        # The gradients that an op completes are added up at once.
        for variable, gradient in added:
            cost, brought = accumulations[variable], accumulated.get(variable, ())
            ops[cost.ipu].append(_work_on(cost, gradient, Pass.BACKWARD.value, storages, brought))
    for cost in costs:
        if cost.part == UPDATE_PART:
            gradient = step.gradients[cost.variable]
            update = _work_on(cost, gradient, UPDATE, storages, updated.get(cost.variable, ()))
            # An accumulator stands in for the gradient.
            ops[cost.ipu].append(replace(update, reads=()) if cost.variable in accumulations else update)
    return {ipu: IpuSchedule(scheduled) for ipu, scheduled in ops.items()}


def _scheduled_parts(op: Op, phase: str, storages: Storages, fetched: Mapping[str, Spread]) -> list[ScheduledOp]:
    step, reads, naming = storages.step, storages.read_by(op), naming_of(storages.step)
    made = [result for result in step.results_of(op) if storages.roots[result.name] == result.name]
    tiles = storages.widest((*reads, *(result.name for result in made)))
    brought = [fetched[root] for root in reads if root in fetched]
    scheduled = []
    for index, cost in enumerate(storages.parts[op.name]):
        results = made if index == 0 else []
        if cost.part in GRADIENT_PARTS:  # gradients of a convolution come one by one
            place = GRADIENT_PARTS.index(cost.part)
            results = [r for r in made if (r.index == place if r.name != r.producer else index == 0)]
        names = tuple(tensor.name for tensor in results)
        temporary = _joined(storages.space.temporary(cost.work.temporary_bytes, tiles), brought)
        name = naming.part(op.name, cost.part)
        scheduled.append(ScheduledOp(op.name, phase, cost.part, name, op.stage, tuple(reads), names, temporary))
    return scheduled


def _work_on(
    cost: VariableCost, gradient: str, phase: str, storages: Storages, brought: Sequence[Spread]
) -> ScheduledOp:
    root, producer = storages.roots[gradient], storages.step.producer(gradient)
    stage = 0 if producer is None else producer.stage
    needs = storages.space.temporary(cost.work.temporary_bytes, storages.widest([root]))
    name = f"{cost.variable}: {cost.part}"
    return ScheduledOp(gradient, phase, cost.part, name, stage, (root,), (), _joined(needs, brought))


def _joined(temporary: Spread, fetched: Sequence[Spread]) -> Spread:
    every = (temporary, *fetched)
    on_tile = sum(spread.on_tile for spread in every)
    return Spread(on_tile, max(spread.tiles for spread in every), on_tile)


def _summands(step: Step, gradient: str, sums: set[str]) -> list[str]:
    """Return the gradients that add up to this one, and note in `sums` the ops that would add them.

    An accumulator takes each as soon as it is there. PopART does so if it is asked to (`decomposeGradSum`), and
    Graphcore's BERT has a pattern for the embedding that is tied to the decoder (`TiedGatherAccumulate`).
    """
    op = step.producer(gradient)
    if op is None or op.kind != "add" or not op.is_backward:
        return [gradient]
    added = step.read_by(op)
    makers = [step.producer(tensor.name) for tensor in added]
    alike = all(tensor.shape == step.tensors[gradient].shape for tensor in added)
    used_once = all(len(step.readers[tensor.name]) == 1 for tensor in added)
    if len(added) != 2 or not (alike and used_once and all(maker and maker.ipu == op.ipu for maker in makers)):
        return [gradient]
    sums.add(op.name)
    return [summand for tensor in added for summand in _summands(step, tensor.name, sums)]


def _completed_gradients(storages: Storages, summands: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Map ops to variables and their gradients that are complete after them: names may stand for views made later."""
    step = storages.step
    place = {op.name: place for place, op in enumerate(step.ops)}
    makers: dict[str, list[str]] = defaultdict(list)  # the ops whose results live in a storage, in order
    for op in step.ops:
        for result in step.results_of(op) if op.name in storages.parts else ():
            makers[storages.roots[result.name]].append(op.name)
    completed: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for variable, gradient in summands:
        named = step.producer(gradient)
        if named is not None:
            before = [name for name in makers[storages.roots[gradient]] if place[name] <= place[named.name]]
            completed[before[-1] if before else named.name].append((variable, gradient))
    return completed


class _Instance(NamedTuple):
    """A tensor of the forward pass, or of the backward pass (`again`), for one op only where `drawn` from its seed."""

    root: str
    again: bool
    drawn: int | None = None


class Lifetimes:
    """The lifetimes on one IPU, from place to place in its schedule; variables `elsewhere` live on other IPUs.

    In a pipeline, every stage but the last runs the backward pass of an older micro-batch, from a stash, and only that
    lives between its passes. Tensors for another IPU are kept until the end of the cycle, those from one are there from
    its start. Activations off chip without a stash leave after the forward pass and come back when they are read.
    """

    def __init__(
        self,
        ipu: int,
        schedule: IpuSchedule,
        storages: Storages,
        order: Order,
        activations: Location,
        elsewhere: frozenset[str],
    ) -> None:
        self.schedule = schedule
        self._ipu, self._storages, self._order, self._activations = ipu, storages, order, activations
        self._elsewhere = elsewhere
        self._spans: dict[_Instance, tuple[int, int]] = {}
        self._stash_slots: dict[str, int] = {}
        self._away: set[str] = set()  # activations that leave the chip between the passes, without a stash
        for place, op in enumerate(schedule.ops):
            for root in op.makes:
                self._extend(_Instance(root, op.phase == Pass.RECOMPUTE or storages.is_backward(root)), place, place)
            for root in op.reads:
                if root not in storages.residents or root in elsewhere:
                    self._read(root, op, place)
        leaving = storages.readers if order.is_pipelined else {}
        roots = [root for root, readers in leaving.items() if readers - {ipu}]
        for root in (*roots, *(storages.roots[name] for name in storages.returned)):
            instance = _Instance(root, storages.is_backward(root))
            if instance in self._spans and storages.ipu(root) == ipu:
                self._extend(instance, 0, schedule.cycle_end)

    def lives(self) -> list[Live]:
        """Return what an IPU holds besides what is always live: tensors, stashes and temporary data."""
        spread, contents, end = self._storages.spread, self._storages.contents, self.schedule.cycle_end
        lives = [
            Live(spread(instance.root), first, last, self._category(instance), contents[instance.root])
            for instance, (first, last) in self._spans.items()
        ]
        lives += [
            Live(spread(root).times(slots), 0, end, profile.STASHES, contents[root]._replace(copies=slots))
            for root, slots in self._stash_slots.items()
            if not self._is_off_chip(root)
        ]
        return lives + [
            Live(op.temporary, place, place, profile.TEMPORARIES)
            for place, op in enumerate(self.schedule.ops)
            if op.temporary.on_tile
        ]

    @property
    def inputs(self) -> list[Spread]:
        roots = [instance.root for instance in self._spans if not instance.again]
        return [self._storages.spread(root) for root in roots if self._is_input(root)]

    @property
    def outputs(self) -> list[Spread]:
        roots = dict.fromkeys(self._storages.roots[name] for name in self._storages.returned)
        return [self._storages.spread(root) for root in roots if self._storages.ipu(root) == self._ipu]

    @property
    def off_chip_bytes(self) -> float:
        """Bytes of stashes and of other activations in streaming memory."""
        spread = self._storages.spread
        stashes = {root: slots for root, slots in self._stash_slots.items() if self._is_off_chip(root)}
        in_stashes = sum(spread(root).total * slots for root, slots in stashes.items())
        return in_stashes + sum(spread(root).total for root in self._away)

    def _read(self, root: str, op: ScheduledOp, place: int) -> None:
        storages, start = self._storages, self.schedule.backward_start
        maker, is_backward = storages.step.producer(root), storages.is_backward(root)
        runs_again = maker is not None and maker.name in self._order.kept.again and maker.stage == op.stage
        if op.phase == Pass.FORWARD or is_backward or root in self._elsewhere:
            self._extend(_Instance(root, is_backward), self._arrival(root, place), place)
        elif root in storages.drawn_again and op.phase == Pass.BACKWARD:
            self._extend(_Instance(root, True, drawn=place), place, place)
        elif runs_again or root in storages.drawn_again:
            self._extend(_Instance(root, True), place, place)
        elif slots := self._order.slots[op.stage]:
            self._stash_slots[root] = max(slots, self._stash_slots.get(root, 0))
            self._extend(_Instance(root, True), start, place)
            # that of the newer micro-batch is stashed at the end of its forward pass
            self._extend(_Instance(root, False), 0, max(0, start - 1))
        elif self._is_off_chip(root):
            self._away.add(root)
            self._extend(_Instance(root, True), place, place)
        else:
            self._extend(_Instance(root, False), self._arrival(root, place), place)

    def _extend(self, instance: _Instance, first: int, last: int) -> None:
        begins, ends = self._spans.get(instance, (first, last))
        self._spans[instance] = begins, max(ends, last)

    def _arrival(self, root: str, place: int) -> int:
        """Return the place at which a tensor arrives on this IPU; what is made here appears when it is first used."""
        comes_early = self._is_input(root) or (self._order.is_pipelined and self._storages.ipu(root) != self._ipu)
        return 0 if comes_early and place <= self.schedule.cycle_end else place

    def _is_off_chip(self, root: str) -> bool:
        """Whether a tensor of the forward pass waits for the backward pass in streaming memory."""
        return self._activations.is_off_chip(self._storages.step.tensors[root].elements)

    def _is_input(self, root: str) -> bool:
        return self._storages.step.source(root) is Source.INPUT

    def _category(self, instance: _Instance) -> str:
        if self._is_input(instance.root) and not instance.again:
            return profile.STREAMS
        return profile.GRADIENTS if self._storages.is_backward(instance.root) else profile.ACTIVATIONS
