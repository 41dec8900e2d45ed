"""The memory of a program: the most that each tile of one replica ever holds."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.predict.costs import Costs
from ipu_model.predict.links import ring_of
from ipu_model.predict.memory import categories
from ipu_model.predict.memory.code import Crossings, code_bytes, steps_of
from ipu_model.predict.memory.lifetimes import Borders, Lifetimes, Moments, UpdateCosts, moments_of
from ipu_model.predict.memory.tensors import Resident, Storages, fetched, residents
from ipu_model.predict.memory.tiles import Contents, Live, Room, Spread, ipu_memory
from ipu_model.predict.ops.updates import VariableCost, accumulation_costs, update_costs, variable_ipus
from ipu_model.predict.order import Order
from ipu_model.predict.profile import Memory
from ipu_model.predict.program import Program


def memory_of(program: Program, costs: Costs, order: Order) -> Memory:
    """Return the memory of every IPU of one replica, from IPU 0 to the last one used.

    All bytes are modelled, without a safety margin. Host buffers (`prefetch_depth`) take no tile memory.
    """
    room = Room(program.settings.device, program.io_tiles)
    storages = Storages(program.step, costs, room)
    updates, ipus = _update_costs(program), variable_ipus(program.step)
    always = residents(program, storages, ipus)
    borders = Borders(program, storages)
    moments = moments_of(storages, order, updates, fetched(always, program))
    found, off_chip = [], sum(each.off_chip for each in always)
    for ipu in range(program.ipus_per_replica):
        elsewhere = frozenset(v.tensor for v in program.step.variables if ipus[v.name] != ipu)
        over_time = Lifetimes(ipu, moments.get(ipu, Moments(())), storages, order, borders, elsewhere)
        own = [each for each in always if each.ipu == ipu]
        crossings = Crossings(_host_tensors(own, over_time), borders.transfers(ipu), _ring(program))
        calls = len(over_time.labels)
        steps = steps_of(program.step, costs, ipu, calls, _steps_of_variables(program, updates))
        code = code_bytes(steps, crossings, program.calibration.memory) if ipu in moments else {}
        places = [*_places(own, code, room), *_io_buffers(program, over_time, room)]
        always_live = [Live(place, 0, over_time.last_moment, kind, what) for kind, place, what in places]
        found.append(ipu_memory(ipu, over_time.labels, [*always_live, *over_time.lives()], room))
        off_chip += over_time.off_chip_bytes
    return Memory(tuple(found), room.device.chip.tile_bytes, off_chip)


def _places(own: list[Resident], code: Mapping[str, float], room: Room) -> list[tuple[str, Spread, Contents | None]]:
    """Return category, place and contents of all always-live data of an IPU: variables, their state, and code."""
    data = [(each.category, each.place, each.contents) for each in own if each.place is not None]
    return data + [(category, room.everywhere(on_tile), None) for category, on_tile in code.items()]


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


def _ring(program: Program) -> int:
    """Return the members of the ring that sums gradients over replicas, and over racks; 0 without one."""
    if not program.training or program.replicas == 1:
        return 0
    ring = ring_of(program)
    return ring.near + (ring.groups if ring.groups > 1 else 0)


def _host_tensors(own: list[Resident], over_time: Lifetimes) -> int:
    """Return how many tensors the host writes to an IPU or reads from it."""
    kept = sum(each.category != categories.CONSTANTS for each in own)
    return kept + len(over_time.inputs) + len(over_time.outputs)


def _io_buffers(program: Program, over_time: Lifetimes, room: Room) -> list[tuple[str, Spread, Contents | None]]:
    """Return the buffers of overlapped transfers on the tiles reserved for them."""
    if not room.io_tiles:
        return []
    inputs = over_time.inputs if program.overlaps_input else []
    outputs = over_time.outputs if program.overlaps_output else []
    what = [Contents("buffer of an input")] * len(inputs) + [Contents("buffer of a result")] * len(outputs)
    sizes = [each.total for each in (*inputs, *outputs)]
    return [(categories.STREAM_BUFFERS, room.on_io_tiles(size), each) for size, each in zip(sizes, what)]
