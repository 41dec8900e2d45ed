"""What each stage does for one micro-batch, and each IPU for one update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.costs import Costs, costs_of, total_of
from ipu_model.predict.device import Cycles, Element
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, VariableCost, variable_costs
from ipu_model.predict.order import order_of
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.program import Execution, Program, remembered
from ipu_model.predict.recomputation import Pass, Recomputed
from ipu_model.predict.remote import DeviceVariable, Mover, Moves, variables_of
from ipu_model.step import Phase, Step, Tensor

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
