"""What each stage does for one micro-batch, and each IPU for one update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.costs import Costs, total_of
from ipu_model.predict.device import Cycles, Device, Element
from ipu_model.predict.ops.updates import accumulation_costs, update_costs
from ipu_model.predict.order import Held, Order
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.program import Execution, Program
from ipu_model.predict.recomputation import Kept, Pass
from ipu_model.predict.remembered import remembered
from ipu_model.predict.remote import DeviceVariable, Mover, mover_of, part, updated_elements, variables_of
from ipu_model.predict.segments import NOTHING
from ipu_model.step import Phase, Step, Tensor


@dataclass(frozen=True)
class StageWork:
    """One stage: cycles of its passes, bytes it reads from and writes to the host, sends on and sends back.

    In a pass, stream copies are moves to and from streaming memory, and global exchange is collectives.
    """

    index: int
    ipu: int
    forward: PhaseCycles = NOTHING
    recompute: PhaseCycles = NOTHING
    backward: PhaseCycles = NOTHING
    inputs: float = 0.0
    outputs: float = 0.0
    on: float = 0.0
    back: float = 0.0


@dataclass(frozen=True)
class UpdateWork:
    """What one IPU does at the update: collectives, moves to and from streaming memory, the optimiser."""

    collective: PhaseCycles = NOTHING
    offload: PhaseCycles = NOTHING
    optimiser: PhaseCycles = NOTHING


@dataclass(frozen=True)
class Workload:
    """All work of one replica: by stage for a micro-batch, by IPU for an update.

    If `updates_in_turn` is true, IPUs update one after another, because all replicas take part in collectives.
    """

    stages: tuple[StageWork, ...]
    updates: Mapping[int, UpdateWork]
    ipus: int
    updates_in_turn: bool = False


def workload_of(program: Program, costs: Costs, order: Order) -> Workload:
    """Return the work of a program's passes and updates.

    Raises:
        Error: tensors are off chip where there is no streaming memory.
    """
    tensors = variables_of(program)
    mover = mover_of(program)
    work = _StageCosts(program, costs, order, tensors, mover)
    return Workload(
        work.stages(),
        _updates(program, tensors, mover),
        program.ipus_per_replica,
        updates_in_turn=_updates_in_turn(program),
    )


def _updates_in_turn(program: Program) -> bool:
    return program.replicas > 1


def slowdown(program: Program) -> float:
    """Return the factor by which work takes longer because I/O tiles do not take part in it."""
    tiles = program.settings.device.chip.tiles
    return tiles / (tiles - program.io_tiles)


_NONE = Cycles()


class _Sum:
    """Cycles that add up; a mutable one, because there are thousands of ops."""

    def __init__(self, start: Cycles = _NONE) -> None:
        self.compute, self.exchange, self.phases = start.compute, start.exchange, start.phases

    def add(self, cycles: Cycles) -> None:
        """Add the cycles of an op."""
        self.compute += cycles.compute
        self.exchange += cycles.exchange
        self.phases += cycles.phases

    @property
    def total(self) -> Cycles:
        """The sum as it is."""
        return Cycles(self.compute, self.exchange, self.phases)

    def cycles(self, device: Device, factor: float) -> PhaseCycles:
        """Return the sum, with computing and exchanging slowed down by `factor`."""
        return PhaseCycles(
            self.compute * factor, self.exchange * factor, internal_sync=self.phases * device.sync_cycles
        )


@remembered
def _cycles_of_passes(step: Step, costs: Costs, kept: Kept) -> Mapping[Pass, tuple[Cycles, ...]]:
    """Return the cycles of every stage's ops in each pass of a micro-batch."""
    sums = {during: [_Sum() for _ in step.stages] for during in Pass}
    for op in costs.ops:
        is_forward = op.phase is Phase.FORWARD
        sums[Pass.FORWARD if is_forward else Pass.BACKWARD][op.stage].add(op.work.cycles)
        if is_forward and op.node in kept.again:
            sums[Pass.RECOMPUTE][op.stage].add(op.work.cycles)
    return {during: tuple(each.total for each in own) for during, own in sums.items()}


class _StageCosts:
    """Adds up the costs of each stage's passes."""

    def __init__(
        self, program: Program, costs: Costs, order: Order, tensors: tuple[DeviceVariable, ...], mover: Mover
    ) -> None:
        self._program, self._costs, self._order = program, costs, order
        self._tensors, self._mover = tensors, mover
        self._device, self._factor = program.settings.device, slowdown(program)
        by_pass = _cycles_of_passes(program.step, costs, order.kept)
        self._forward, self._again, self._backward = ([_Sum(each) for each in by_pass[during]] for during in Pass)
        self._add_accumulation()

    def stages(self) -> tuple[StageWork, ...]:
        """Return the work of every stage."""
        program, mover, stages = self._program, self._mover, self._program.step.stages
        ipus = [stage.ipu for stage in stages]
        tensors = [[tensor for tensor in self._tensors if tensor.stage == stage.index] for stage in stages]
        held = [[each for each in self._order.held if each.stage == stage.index] for stage in stages]
        in_turn = program.execution is Execution.SHARDED
        into = mover.cycles([mover.forward(t, h) for t, h in zip(tensors, held)], ipus, in_turn=in_turn)
        out = (NOTHING,) * len(stages)
        if program.training:
            out = mover.cycles([mover.backward(t, h) for t, h in zip(tensors, held)], ipus, in_turn=in_turn)
        return tuple(self._stage(s.index, s.ipu, held[s.index], into[s.index], out[s.index]) for s in stages)

    def _stage(self, index: int, ipu: int, held: list[Held], into: PhaseCycles, out: PhaseCycles) -> StageWork:
        for sums in (self._forward, self._backward):
            for each in held:
                sums[index].add(self._stash_copy(index, each.tensor))
        forward, again, backward = (
            sums[index].cycles(self._device, self._factor) for sums in (self._forward, self._again, self._backward)
        )
        entered, returned = self._entering(index)
        traffic = self._order.traffic
        return StageWork(
            index, ipu, forward + entered + into, again, backward + returned + out,
            traffic.inputs[index], traffic.outputs[index], traffic.on[index], traffic.back[index],
        )  # fmt: skip

    def _entering(self, stage: int) -> tuple[PhaseCycles, PhaseCycles]:
        """Return the control code around a stage's forward pass, and around its recomputation and backward pass.

        Of K stages, PopART makes 2K - 1 programs: a stage recomputes in its backward program, and the last stage has
        only one, which goes on from the forward to the backward pass.
        """
        control = PhaseCycles(on_tile_execute=self._program.calibration.pipeline.stage_pass_cycles)
        returns = self._program.training and stage != self._program.step.last_stage
        return control, control if returns else NOTHING

    def _add_accumulation(self) -> None:
        program = self._program
        if not program.accumulates:
            return
        stage_of = {tensor.name: tensor.stage for tensor in self._tensors}
        dtype = program.optimiser.accum_dtype if program.optimiser is not None else None
        for cost in accumulation_costs(program.step, program.settings, dtype, held=self._accumulated()):
            self._backward[stage_of[cost.variable]].add(cost.work.cycles)

    def _accumulated(self) -> Mapping[str, int]:
        """Return how many elements this replica accumulates, for each tensor with a sharded accumulator."""
        program, where = self._program, self._program.locations.accumulators
        return {
            tensor.name: math.ceil(tensor.elements * part(program, tensor.elements, where))
            for tensor in self._tensors
            if tensor.trainable and part(program, tensor.elements, where) < 1
        }

    def _stash_copy(self, stage: int, tensor: Tensor) -> Cycles:
        """Return the cycles of copying one tensor into its stash, or out of it.

        A dynamic slice, whose index goes to all tiles first; afterwards the stash's own index is incremented and
        reduced to the number of slots, on one tile (PopART, StashOpx and RestoreOpx). A stash off chip needs the index
        as well, and no slice.
        """
        if not self._order.slots[stage]:
            return Cycles()
        device = self._device
        step = vertices.elementwise(device, 1, Element.INT, ("add",), vertices.BROADCAST_SCALAR)
        index = Cycles(compute=2 * step) + device.exchange(Element.INT.bytes)
        if self._program.locations.activations.is_off_chip(tensor.elements):
            return index
        on_tile, element = self._on_tile(tensor), Element.of(tensor.dtype)
        return index + Cycles(compute=vertices.dynamic_slice(device, 1, on_tile, element))

    def _on_tile(self, tensor: Tensor) -> float:
        layout = self._costs.layouts.get(tensor.name)
        even = self._device.spread(tensor.elements, Element.of(tensor.dtype))
        return layout.on_tile if layout is not None else even


def _updates(program: Program, tensors: tuple[DeviceVariable, ...], mover: Mover) -> dict[int, UpdateWork]:
    """Return the work of each IPU at an update; it is empty for programs without an optimiser."""
    if not program.training or program.optimiser is None:
        return {}
    device, factor = program.settings.device, slowdown(program)
    costs = update_costs(
        program.step, program.settings, program.optimiser, accumulates=program.accumulates,
        group_of=program.groups, held=updated_elements(program, tensors),
    )  # fmt: skip
    ipus = sorted({cost.ipu for cost in costs})
    moves = [mover.update(tensor for tensor in tensors if tensor.ipu == ipu) for ipu in ipus]
    found = {}
    for ipu, moved in zip(ipus, mover.cycles(moves, ipus, in_turn=_updates_in_turn(program)), strict=True):
        cycles = total_of(cost for cost in costs if cost.ipu == ipu)
        found[ipu] = UpdateWork(
            PhaseCycles(global_exchange=moved.global_exchange),
            PhaseCycles(stream_copy_begin=moved.stream_copy_begin, stream_copy_mid=moved.stream_copy_mid),
            PhaseCycles(
                cycles.compute * factor, cycles.exchange * factor, internal_sync=cycles.phases * device.sync_cycles
            ),
        )
    return found
