"""The memory of a program: what every tile of one replica holds at most."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.memory import categories
from ipu_model.memory.calibration import calibrated
from ipu_model.memory.code import Traffic, code_bytes, distinct_steps
from ipu_model.memory.lifetimes import IpuLifetimes, Live
from ipu_model.memory.occupancy import ipu_memory
from ipu_model.memory.resident import Resident, fetched, residents
from ipu_model.memory.schedule import Schedule, UpdateCosts, schedules
from ipu_model.memory.spread import Room, Spread
from ipu_model.memory.stash import Stash
from ipu_model.memory.storage import Storages
from ipu_model.predict.costs import Costs
from ipu_model.predict.ops.updates import VariableCost, accumulation_costs, update_costs, variable_ipus
from ipu_model.profiling.data import Memory
from ipu_model.program import Program
from ipu_model.recompute import Kept


def memory_of(program: Program, lowered: Costs, kept: Kept) -> Memory:
    """Return the memory of every IPU of one replica, from IPU 0 to the last one used.

    `lowered` are the costs of the program's step with its settings, `kept` what `kept_for_backward` says. Bytes are
    modelled ones; no tile is assumed to be fuller than its tensors make it. Host buffers (`prefetch_depth`) take no
    memory of tiles.
    """
    room = Room(program.settings.device, program.io_tiles)
    step = program.step
    storages = Storages(step, lowered, room)
    costs = _update_costs(program)
    ipus = variable_ipus(program.step)
    always = residents(program, storages, ipus)
    stash = Stash(program, storages)
    plans = schedules(storages, kept, costs, fetched(always, program))
    found, off_chip = [], sum(each.off_chip for each in always)
    for ipu in range(program.ipus_per_replica):
        schedule = plans.get(ipu, Schedule(()))
        elsewhere = frozenset(v.tensor for v in step.variables if ipus[v.name] != ipu)
        over_time = IpuLifetimes(ipu, schedule, storages, kept, stash, elsewhere)
        own = [each for each in always if each.ipu == ipu]
        traffic = Traffic(_host_tensors(own, over_time), stash.transfers(ipu), program.replicas)
        steps = distinct_steps(lowered, ipu, _steps_of_variables(program, costs))
        places = [(each.category, each.place) for each in own if each.place is not None]
        places += _everywhere(code_bytes(steps, traffic, calibrated()), room) if schedule.steps else []
        places += _io_buffers(program, over_time, room)
        end = max(0, len(schedule.steps) - 1)
        lives = [Live(place, 0, end, category) for category, place in places]
        found.append(ipu_memory(ipu, schedule.steps, [*lives, *over_time.lives()], room))
        off_chip += over_time.off_chip_bytes
    return Memory(tuple(found), room.device.chip.tile_bytes, off_chip)


def _update_costs(program: Program) -> UpdateCosts:
    if not program.training:
        return UpdateCosts({}, {})
    step, settings, spec = program.step, program.settings, program.optimiser
    accumulation: tuple[VariableCost, ...] = ()
    if program.accumulates:
        accumulation = accumulation_costs(step, settings, spec.accum_dtype if spec is not None else None)
    update: tuple[VariableCost, ...] = ()
    if spec is not None:
        update = update_costs(step, settings, spec, accumulates=program.accumulates, group_of=program.groups)
    return UpdateCosts({cost.variable: cost for cost in accumulation}, {cost.variable: cost for cost in update})


def _steps_of_variables(program: Program, costs: UpdateCosts) -> list[tuple[str, tuple[int, ...], VariableCost]]:
    """Return kind, shape and cost of each step that works on a variable."""
    shape_of = {variable.name: program.step.tensors[variable.tensor].shape for variable in program.step.variables}
    kinds = (("accumulation", costs.accumulation), ("update", costs.update))
    return [(kind, shape_of[name], cost) for kind, found in kinds for name, cost in found.items()]


def _host_tensors(own: list[Resident], over_time: IpuLifetimes) -> int:
    """Return how many tensors the host writes to an IPU or reads from it."""
    kept = sum(each.category != categories.CONSTANTS for each in own)
    return kept + len(over_time.inputs) + len(over_time.outputs)


def _everywhere(found: Mapping[str, float], room: Room) -> list[tuple[str, Spread]]:
    return [(category, room.everywhere(on_tile)) for category, on_tile in found.items()]


def _io_buffers(program: Program, over_time: IpuLifetimes, room: Room) -> list[tuple[str, Spread]]:
    """Return the buffers that transfers beside the computation fill or empty, on the tiles reserved for them."""
    if not room.io_tiles:
        return []
    inputs = over_time.inputs if program.overlaps_input else []
    outputs = over_time.outputs if program.overlaps_output else []
    return [(categories.STREAM_BUFFERS, room.on_io_tiles(each.total)) for each in (*inputs, *outputs)]
