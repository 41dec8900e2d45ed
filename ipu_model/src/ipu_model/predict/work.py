"""What each stage does for one micro-batch, and each IPU for one update, transfers of variables included.

Off chip (in streaming memory), weights are read for both passes of every micro-batch and for the update, which writes
them; accumulators are read and written in every backward pass and by the update, optimiser state by the update (and in
backward passes that accumulate in it); activations are written by the forward pass and read by the backward pass.

Each replica moves its part of a sharded tensor: weights are gathered before each pass, gradients come by a
reduce-scatter. LAMB's sums of squares are added up over all replicas, one number each (PopART, LambSquare). IPUs of a
machine share the rate of its memory with those that stream at the same time, but not with those that update in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec, StateTensor, weight_update
from ipu_model.predict import vertices
from ipu_model.predict.costs import Costs, costs_of, total_of
from ipu_model.predict.device import Cycles, Element
from ipu_model.predict.links import replicas_per_machine, ring_of
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, VariableCost, variable_costs, variable_ipus
from ipu_model.predict.order import Held, device_bytes, order_of
from ipu_model.predict.profile import ACCUMULATORS, OPTIMISER_STATE, VARIABLES, PhaseCycles
from ipu_model.predict.program import Execution, Location, Program, remembered
from ipu_model.predict.recomputation import Pass, Recomputed
from ipu_model.step import DType, Phase, Step, Tensor

NOTHING = PhaseCycles()


@dataclass(frozen=True)
class StageWork:
    """One stage: cycles of its passes, bytes it reads from and writes to the host, sends on and sends back."""

    index: int
    ipu: int
    forward: PhaseCycles = NOTHING
    recompute: PhaseCycles = NOTHING
    backward: PhaseCycles = NOTHING
    inputs: float = 0.0
    outputs: float = 0.0
    on: float = 0.0
    back: float = 0.0

    @property
    def total(self) -> float:
        return self.forward.total + self.recompute.total + self.backward.total


@dataclass(frozen=True)
class Workload:
    """All work of one replica: by stage for a micro-batch, by IPU for an update; IPUs may have to take turns."""

    stages: tuple[StageWork, ...]
    updates: Mapping[int, PhaseCycles]
    ipus: int
    updates_in_turn: bool = False


def workload_of(program: Program) -> Workload:
    """Return the work of a program's passes and updates; `Error`: there is no streaming memory for what is off chip."""
    variables, mover, in_turn = variables_of(program), Mover(program), program.replicas > 1
    own = variable_costs(program, sharded=True)
    updates = [cost for cost in own if cost.part == UPDATE_PART]
    ipus = sorted({cost.ipu for cost in updates})
    works = [_on_tiles(total_of(cost for cost in updates if cost.ipu == ipu), program) for ipu in ipus]
    moves = [mover.update(variable for variable in variables if variable.ipu == ipu) for ipu in ipus]
    moved = mover.cycles(moves, ipus, in_turn=in_turn)
    return Workload(
        _stages(program, [cost for cost in own if cost.part == ACCUMULATION_PART], variables, mover),
        {ipu: transfers + work for ipu, transfers, work in zip(ipus, moved, works, strict=True)},
        program.ipus_per_replica,
        updates_in_turn=in_turn,
    )


def _on_tiles(cycles: Cycles, program: Program) -> PhaseCycles:
    device = program.settings.device
    slowdown = device.chip.tiles / (device.chip.tiles - program.io_tiles)
    sync = cycles.phases * device.sync_cycles
    return PhaseCycles(cycles.compute * slowdown, cycles.exchange * slowdown, internal_sync=sync)


def _stages(
    program: Program, accumulations: Iterable[VariableCost], variables: tuple[DeviceVariable, ...], mover: Mover
) -> tuple[StageWork, ...]:
    stages, costs, order = program.step.stages, costs_of(program.step, program.settings), order_of(program)
    passes = _cycles_of_passes(program.step, costs, order.kept)
    forward, recompute, backward = (list(passes[during]) for during in Pass)
    stage_of = {variable.name: variable.stage for variable in variables}
    for cost in accumulations:
        backward[stage_of[cost.variable]] += cost.work.cycles
    for held in order.held:
        if order.slots[held.stage]:
            copy = _stash_copy(program, costs, held.tensor)
            forward[held.stage] += copy
            backward[held.stage] += copy

    ipus = [stage.ipu for stage in stages]
    in_turn = program.execution is Execution.SHARDED
    used = [[variable for variable in variables if variable.stage == stage.index] for stage in stages]
    kept = [[held for held in order.held if held.stage == stage.index] for stage in stages]
    fetched = mover.cycles([*map(mover.forward, used, kept)], ipus, in_turn=in_turn)
    moves_back = [*map(mover.backward, used, kept)] if program.training else [Moves()] * len(stages)
    fetched_back = mover.cycles(moves_back, ipus, in_turn=in_turn)

    # The control code around a stage's passes. Of K stages, PopART makes 2K - 1 programs: a stage recomputes in its
    # backward program, and the last stage has only one, which goes on from the forward to the backward pass.
    control = PhaseCycles(on_tile_execute=program.calibration.pipeline.stage_pass_cycles)
    return tuple(
        StageWork(
            k,
            stage.ipu,
            _on_tiles(forward[k], program) + control + fetched[k],
            _on_tiles(recompute[k], program),
            _on_tiles(backward[k], program)
            + (control if program.training and k != program.step.last_stage else NOTHING)
            + fetched_back[k],
            *(by_stage[k] for by_stage in order.traffic),
        )
        for k, stage in enumerate(stages)
    )


@remembered
def _cycles_of_passes(step: Step, costs: Costs, kept: Recomputed) -> Mapping[Pass, list[Cycles]]:
    passes = {during: [Cycles()] * len(step.stages) for during in Pass}
    for op in costs.ops:
        is_forward = op.phase is Phase.FORWARD
        passes[Pass.FORWARD if is_forward else Pass.BACKWARD][op.stage] += op.work.cycles
        if is_forward and op.node in kept.again:
            passes[Pass.RECOMPUTE][op.stage] += op.work.cycles
    return passes


def _stash_copy(program: Program, costs: Costs, tensor: Tensor) -> Cycles:
    """Return the cycles of copying one tensor into its stash, or out of it.

    A dynamic slice, whose index goes to all tiles first; afterwards the stash's own index is incremented and
    reduced to the number of slots, on one tile (PopART, StashOpx and RestoreOpx). A stash off chip needs the index
    as well, and no slice.
    """
    device = program.settings.device
    step = vertices.elementwise(device, 1, Element.INT, ("add",), vertices.BROADCAST_SCALAR)
    index = Cycles(compute=2 * step) + device.exchange(Element.INT.bytes)
    if program.locations.activations.is_off_chip(tensor.elements):
        return index
    layout, element = costs.layouts.get(tensor.name), Element.of(tensor.dtype)
    on_tile = device.spread(tensor.elements, element) if layout is None else layout.on_tile
    return index + Cycles(compute=vertices.dynamic_slice(device, 1, on_tile, element))


# --- transfers for tensors that live in streaming memory or are sharded over replicas


@dataclass(frozen=True)
class DeviceVariable:
    """A variable's place, elements and bytes; `state` has the accumulator only if both are in one tensor.

    `kept` are the categories and types of all tensors of its size that the device keeps for it.
    """

    name: str
    tensor: str
    stage: int
    ipu: int
    elements: int
    trainable: bool
    weight: float
    gradient: float
    state: float = 0.0
    accumulates_in_state: bool = False
    kept: tuple[tuple[str, DType], ...] = ()


def variables_of(program: Program) -> tuple[DeviceVariable, ...]:
    return _variables(program.step, program.optimiser, program.groups, program.training, program.accumulates)


@remembered
def _variables(
    step: Step, spec: OptimiserSpec | None, groups: Mapping[str, int | None], training: bool, accumulates: bool
) -> tuple[DeviceVariable, ...]:
    ipus = variable_ipus(step)
    variables = []
    for variable in step.variables:
        tensor = step.tensors[variable.tensor]
        # The stage that computes the gradient, or else the first one that reads the variable.
        maker = step.producer(step.gradients[variable.name]) if variable.name in step.gradients else None
        readers = [maker] if maker is not None else step.readers.get(variable.tensor, ())
        stage = min((op.stage for op in readers), default=0)
        elements, weight = tensor.elements, Element.of(tensor.dtype).bytes
        trained = training and variable.name in step.gradients
        accumulator, slots, accumulates_in_state = tensor.dtype, list[StateTensor](), False
        if trained and spec is not None:
            update = _update_of(spec, spec.hyper(groups.get(variable.name)))
            slots += update.weight_sized_state
            accumulator, accumulates_in_state = spec.accum_dtype, update.accumulates_in_state
        gradient = Element.of(accumulator).bytes if accumulates else weight
        state = float(sum(slot.dtype.bytes for slot in slots))
        kept = [(VARIABLES, tensor.dtype), *((OPTIMISER_STATE, slot.dtype) for slot in slots)]
        if trained and accumulates and not accumulates_in_state:
            kept.append((ACCUMULATORS, accumulator))
        where = stage, ipus[variable.name]
        sizes = elements * weight, float(elements * gradient * trained), elements * state
        own = variable.name, variable.tensor, *where, elements, trained
        variables.append(DeviceVariable(*own, *sizes, accumulates_in_state, tuple(kept)))
    return tuple(variables)


_update_of = lru_cache(maxsize=256)(weight_update)


@dataclass(frozen=True)
class Moves:
    """The transfers of one pass: bytes and tensors to and from streaming memory, and seconds of collectives."""

    remote_bytes: float = 0.0
    collective_seconds: float = 0.0
    transfers: int = 0

    def __add__(self, other: Moves) -> Moves:
        seconds = self.collective_seconds + other.collective_seconds
        return Moves(self.remote_bytes + other.remote_bytes, seconds, self.transfers + other.transfers)


class Mover:
    def __init__(self, program: Program) -> None:
        self.program, self.ring = program, ring_of(program)

    def forward(self, variables: Iterable[DeviceVariable], held: Iterable[Held]) -> Moves:
        return sum([*map(self._use, variables), *map(self._keep, held)], Moves())

    def backward(self, variables: Sequence[DeviceVariable], held: Iterable[Held]) -> Moves:
        return sum([*map(self._use, variables), *map(self._accumulate, variables), *map(self._keep, held)], Moves())

    def update(self, variables: Iterable[DeviceVariable]) -> Moves:
        """Return what one weight update moves: gradients between replicas, and all tensors that are off chip."""
        return sum((self._update(variable) for variable in variables if variable.trainable), Moves())

    def cycles(self, moves: Sequence[Moves], ipus: Sequence[int], *, in_turn: bool = False) -> tuple[PhaseCycles, ...]:
        """Return the moves' cycles with a synchronisation before each; `Error`: there is no streaming memory."""
        chip = self.program.system.chip
        streamed = [move.remote_bytes for move in moves]
        seconds = self._streaming_seconds(streamed, ipus, in_turn=in_turn) if any(streamed) else [0.0] * len(streamed)
        return tuple(
            PhaseCycles(
                stream_copy_begin=float(move.transfers * chip.global_sync_cycles),
                stream_copy_mid=streaming * chip.clock_hz,
                global_exchange=move.collective_seconds * chip.clock_hz,
            )
            for move, streaming in zip(moves, seconds, strict=True)
        )

    def _streamed(self, variable: DeviceVariable, size: float, where: Location, times: int) -> Moves:
        """Return the moves of a tensor of the variable's shape and of `size` bytes that is read or written `times`."""
        transfers = times * where.is_off_chip(variable.elements)
        return Moves(transfers * size * self.program.part(variable.elements, where), transfers=transfers)

    def _use(self, variable: DeviceVariable) -> Moves:
        where = self.program.locations.weights
        is_whole = self.program.part(variable.elements, where) == 1
        gathering = 0.0 if is_whole else self.ring.all_gather(variable.weight)
        return self._streamed(variable, variable.weight, where, 1) + Moves(collective_seconds=gathering)

    def _accumulate(self, variable: DeviceVariable) -> Moves:
        if not variable.trainable or not self.program.accumulates:
            return Moves()
        locations = self.program.locations
        is_whole = self.program.part(variable.elements, locations.accumulators) == 1
        scattering = Moves(collective_seconds=0.0 if is_whole else self.ring.reduce_scatter(variable.gradient))
        if variable.accumulates_in_state:
            return self._streamed(variable, variable.state, locations.optimiser, 2) + scattering
        return self._streamed(variable, variable.gradient, locations.accumulators, 2) + scattering

    def _keep(self, held: Held) -> Moves:
        off_chip = self.program.locations.activations.is_off_chip(held.tensor.elements)
        return Moves(float(device_bytes(held.tensor)), transfers=1) if off_chip else Moves()

    def _update(self, variable: DeviceVariable) -> Moves:
        program, locations = self.program, self.program.locations
        moves = self._streamed(variable, variable.weight, locations.weights, 2)
        if variable.state:
            moves += self._streamed(variable, variable.state, locations.optimiser, 2)
        if program.accumulates and not variable.accumulates_in_state:
            moves += self._streamed(variable, variable.gradient, locations.accumulators, 2)
        if not program.is_sharded_update(variable.elements):
            return moves + Moves(collective_seconds=self.ring.all_reduce(variable.gradient))
        seconds = 0.0
        if not (program.accumulates and program.part(variable.elements, locations.accumulators) < 1):
            seconds += self.ring.reduce_scatter(variable.gradient)
        if not program.part(variable.elements, locations.weights) < 1:
            seconds += self.ring.all_gather(variable.weight)
        if program.optimiser is not None and program.optimiser.family.startswith("LAMB"):
            seconds += 2 * self.ring.all_reduce(Element.FLOAT.bytes)
        return moves + Moves(collective_seconds=seconds)

    def _streaming_seconds(self, moved: Sequence[float], ipus: Sequence[int], *, in_turn: bool) -> list[float]:
        """Return the seconds that each IPU streams; every replica gets an equal part of its machine's rate."""
        system = self.program.system
        if system.streaming_bytes_per_second <= 0:
            raise Error(
                f"Tensors are placed off chip, but {system.name} has no streaming memory. Keep them on chip "
                "(useOnChipStorage(True)), or use a machine that has some, such as an M2000."
            )
        rate = system.streaming_bytes_per_second / replicas_per_machine(self.program)
        if in_turn:
            return [size / rate for size in moved]
        whole: dict[int, float] = defaultdict(float)
        for size, ipu in zip(moved, ipus, strict=True):
            whole[ipu] += size
        ends: dict[int, float] = {}
        for machine in {ipu // system.ipus_per_machine for ipu in ipus}:
            on_it = {ipu: size for ipu, size in whole.items() if ipu // system.ipus_per_machine == machine}
            ends |= shared_seconds(on_it, rate)
        return [ends[ipu] * size / whole[ipu] if size else 0.0 for size, ipu in zip(moved, ipus, strict=True)]


def shared_seconds(sizes: Mapping[int, float], rate: float) -> dict[int, float]:
    """Return when transfers end that begin together and share `rate`, and then what the others leave."""
    ends: dict[int, float] = {}
    now = done = 0.0
    for left, (key, size) in zip(range(len(sizes), 0, -1), sorted(sizes.items(), key=lambda item: item[1])):
        now += left * (size - done) / rate
        done = size
        ends[key] = now
    return ends
