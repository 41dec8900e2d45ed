"""The memory of a program: the most that each tile of one replica ever holds."""

from __future__ import annotations

from ipu_model.predict.costs import Costs
from ipu_model.predict.links import ring_of
from ipu_model.predict.memory.code import Crossings, VariableStep, code_bytes, steps_of
from ipu_model.predict.memory.lifetimes import IpuSchedule, Lifetimes, schedules_of
from ipu_model.predict.memory.tensors import Storages, fetched, residents
from ipu_model.predict.memory.tiles import Contents, Live, TileSpace, ipu_memory
from ipu_model.predict.ops.updates import (
    ACCUMULATION_PART,
    UPDATE_PART,
    accumulation_costs,
    update_costs,
    variable_ipus,
)
from ipu_model.predict.order import Order
from ipu_model.predict.profile import CONSTANTS, STREAM_BUFFERS, Memory
from ipu_model.predict.program import Program


def memory_of(program: Program, costs: Costs, order: Order) -> Memory:
    """Return the memory of every IPU of one replica, from IPU 0 to the last one used.

    All bytes are modelled, without a safety margin. Host buffers (`prefetch_depth`) take no tile memory.
    """
    space = TileSpace(program.settings.device, program.io_tiles)
    storages = Storages(program.step, costs, space)
    variable_steps, ipu_of = _variable_steps(program), variable_ipus(program.step)
    always = residents(program, storages)
    schedules = schedules_of(storages, order, variable_steps, fetched(always, program))
    memories, off_chip = [], sum(resident.off_chip for resident in always)
    for ipu in range(program.ipus_per_replica):
        elsewhere = frozenset(v.tensor for v in program.step.variables if ipu_of[v.name] != ipu)
        schedule = schedules.get(ipu, IpuSchedule())
        lifetimes = Lifetimes(ipu, schedule, storages, order, program.locations.activations, elsewhere)
        own = [resident for resident in always if resident.ipu == ipu]
        lives = [Live(r.place, 0, schedule.end, r.category, r.contents) for r in own if r.place is not None]
        if ipu in schedules:
            on_host = sum(resident.category != CONSTANTS for resident in own)
            crossings = Crossings(
                on_host + len(lifetimes.inputs) + len(lifetimes.outputs),
                sum(ipu in readers or storages.ipu(root) == ipu for root, readers in storages.readers.items()),
                _ring_members(program),
            )
            steps = steps_of(program.step, costs, ipu, len(schedule.ops), variable_steps)
            code = code_bytes(steps, crossings, program.calibration.memory)
            lives += [Live(space.everywhere(size), 0, schedule.end, category) for category, size in code.items()]
        lives += _io_buffers(program, lifetimes, space)
        memories.append(ipu_memory(ipu, schedule.ops, [*lives, *lifetimes.lives()], space))
        off_chip += lifetimes.off_chip_bytes
    return Memory(tuple(memories), space.device.chip.tile_bytes, off_chip)


def _variable_steps(program: Program) -> list[VariableStep]:
    """Return the steps that add up gradients, and those that update weights."""
    step, settings, spec, accumulates = program.step, program.settings, program.optimiser, program.accumulates
    steps: list[VariableStep] = []
    shape_of = {variable.name: step.tensors[variable.tensor].shape for variable in step.variables}
    if program.training and accumulates:
        costs = accumulation_costs(step, settings, spec.accum_dtype if spec is not None else None)
        steps += [VariableStep(ACCUMULATION_PART, shape_of[cost.variable], cost) for cost in costs]
    if program.training and spec is not None:
        costs = update_costs(step, settings, spec, accumulates=accumulates, group_of=program.groups)
        steps += [VariableStep(UPDATE_PART, shape_of[cost.variable], cost) for cost in costs]
    return steps


def _ring_members(program: Program) -> int:
    """Return the members of the ring that sums gradients over replicas, and over racks; 0 without one."""
    if not program.training or program.replicas == 1:
        return 0
    ring = ring_of(program)
    return ring.near + (ring.groups if ring.groups > 1 else 0)


def _io_buffers(program: Program, lifetimes: Lifetimes, space: TileSpace) -> list[Live]:
    """Return the buffers of overlapped transfers, on the tiles reserved for them."""
    if not space.io_tiles:
        return []
    buffers = [("buffer of an input", spread) for spread in lifetimes.inputs if program.overlaps_input]
    buffers += [("buffer of a result", spread) for spread in lifetimes.outputs if program.overlaps_output]
    end = lifetimes.schedule.end
    return [Live(space.on_io_tiles(spread.total), 0, end, STREAM_BUFFERS, Contents(what)) for what, spread in buffers]
