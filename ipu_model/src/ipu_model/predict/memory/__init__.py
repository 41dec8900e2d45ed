"""The memory of a program: the most that each tile of one replica ever holds."""

from __future__ import annotations

from ipu_model.predict.costs import Costs
from ipu_model.predict.links import ring_of
from ipu_model.predict.memory.code import Crossings, code_bytes, steps_of
from ipu_model.predict.memory.lifetimes import IpuSchedule, Lifetimes, schedules_of
from ipu_model.predict.memory.tensors import Storages, fetched, residents
from ipu_model.predict.memory.tiles import Contents, Live, TileSpace, ipu_memory
from ipu_model.predict.ops.updates import variable_costs, variable_ipus
from ipu_model.predict.order import Order
from ipu_model.predict.profile import CONSTANTS, STREAM_BUFFERS, Memory
from ipu_model.predict.program import Program


def memory_of(program: Program, costs: Costs, order: Order) -> Memory:
    """Return the memory of every IPU of one replica, from IPU 0 to the last one used.

    All bytes are modelled, without a safety margin. Host buffers (`prefetch_depth`) take no tile memory.
    """
    space = TileSpace(program.settings.device, program.io_tiles)
    storages = Storages(program.step, costs, space)
    updates, ipu_of = variable_costs(program), variable_ipus(program.step)
    always = residents(program, storages)
    schedules = schedules_of(storages, order, updates, fetched(always, program))
    ring = ring_of(program)
    members = ring.near + (ring.groups if ring.groups > 1 else 0) if program.training and ring.replicas > 1 else 0
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
                members,
            )
            steps = steps_of(program.step, costs, ipu, len(schedule.ops), updates)
            code = code_bytes(steps, crossings, program.calibration.memory)
            lives += [Live(space.everywhere(size), 0, schedule.end, category) for category, size in code.items()]
        streamed = [("buffer of an input", spread) for spread in lifetimes.inputs if program.overlaps_input]
        streamed += [("buffer of a result", spread) for spread in lifetimes.outputs if program.overlaps_output]
        lives += [
            Live(space.on_io_tiles(spread.total), 0, schedule.end, STREAM_BUFFERS, Contents(what))
            for what, spread in streamed
            if space.io_tiles
        ]
        memories.append(ipu_memory(ipu, schedule.ops, [*lives, *lifetimes.lives()], space))
        off_chip += lifetimes.off_chip_bytes
    return Memory(tuple(memories), space.device.chip.tile_bytes, off_chip)
