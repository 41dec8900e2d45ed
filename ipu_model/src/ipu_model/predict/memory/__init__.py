"""The memory of a program: the most that each tile of one replica ever holds, code included.

Equal steps are outlined: their code exists once, however often they run. Control code is the exception: it has a call
for every step of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.predict import profile
from ipu_model.predict.calibration import MemoryConstants
from ipu_model.predict.costs import Costs, costs_of
from ipu_model.predict.device import Work
from ipu_model.predict.links import ring_of
from ipu_model.predict.memory.lifetimes import IpuSchedule, Lifetimes, Storages, residents, schedules_of
from ipu_model.predict.memory.tiles import Contents, Live, Spread, TileSpace, ipu_memory
from ipu_model.predict.ops.updates import VariableCost, variable_costs, variable_ipus
from ipu_model.predict.order import order_of
from ipu_model.predict.program import Program, remembered
from ipu_model.step import Argument, Ref, Step


def memory_of(program: Program) -> profile.Memory:
    """Return the modelled memory of each IPU of one replica, without a margin; host buffers take no tile memory."""
    costs, order = costs_of(program.step, program.settings), order_of(program)
    space = TileSpace(program.settings.device, program.io_tiles)
    storages = Storages(program.step, costs, space)
    updates, ipu_of = variable_costs(program), variable_ipus(program.step)
    always = residents(program, storages)
    schedules = schedules_of(storages, order, updates, always)
    ring = ring_of(program)
    members = ring.near + (ring.groups if ring.groups > 1 else 0) if program.training and ring.replicas > 1 else 0
    repeated = {op.name for op in program.step.ops if op.is_repeated}
    memories, off_chip = [], sum(resident.off_chip for resident in always)
    for ipu in range(program.ipus_per_replica):
        elsewhere = frozenset(v.tensor for v in program.step.variables if ipu_of[v.name] != ipu)
        schedule = schedules.get(ipu, IpuSchedule())
        lifetimes = Lifetimes(ipu, schedule, storages, order, program.locations.activations, elsewhere)
        own = [resident for resident in always if resident.ipu == ipu]
        lives = [Live(r.place, 0, schedule.end, r.category, r.contents) for r in own if r.place is not None]
        if ipu in schedules:
            sent = [r.place for r in own if r.category != profile.CONSTANTS]
            sent += [*lifetimes.inputs, *lifetimes.outputs]
            on_host = sum(spread.tiles for spread in sent if spread is not None) / space.tiles
            copies = sum(ipu in readers or storages.ipu(root) == ipu for root, readers in storages.readers.items())
            calls = sum(op.node not in repeated for op in schedule.ops)
            steps = steps_of(program.step, costs, ipu, calls, updates)
            code = code_bytes(steps, on_host, copies, members, program.calibration.memory)
            lives += [Live(space.everywhere(size), 0, schedule.end, category) for category, size in code.items()]
        streamed = [("buffer of an input", spread) for spread in lifetimes.inputs if program.overlaps_input]
        streamed += [("buffer of a result", spread) for spread in lifetimes.outputs if program.overlaps_output]
        for what, spread in streamed if space.io_tiles else ():
            share = spread.total / space.io_tiles
            place = Spread(share, space.io_tiles, share, first=space.compute_tiles)
            lives.append(Live(place, 0, schedule.end, profile.STREAM_BUFFERS, Contents(what)))
        memories.append(ipu_memory(ipu, schedule.ops, [*lives, *lifetimes.lives()], space))
        off_chip += lifetimes.off_chip_bytes
    return profile.Memory(tuple(memories), space.device.chip.tile_bytes, off_chip)


# Ops whose exchanges bring one value, or the tensor of another tile: a tile receives few pieces in each.
_FEW_PIECES = ("update", "accumulation", "elementwise", "copy", "cast", "loss")


@dataclass(frozen=True)
class Steps:
    """Distinct steps of an IPU, and its calls: exchange phases of many pieces, of few; compute sets; vertex kinds."""

    phases: int
    copies: int
    compute_sets: int
    kinds: int
    calls: int


def steps_of(step: Step, costs: Costs, ipu: int, calls: int, updates: Iterable[VariableCost] = ()) -> Steps:
    """Return the steps of an IPU; ops of equal kind, shapes, types and attributes share code, wherever tensors lie."""
    alike, kinds = _alike(step), set[object]()
    many, few = dict[object, int](), dict[object, int]()
    named: list[tuple[object, object, Work]]
    named = [((alike[op.node], op.part), (op.target, op.part), op.work) for op in costs.of(ipu=ipu)]
    named += [((cost.part, cost.shape, cost.work), cost.part, cost.work) for cost in updates if cost.ipu == ipu]
    for key, kind, work in named:
        kinds.add(kind)
        phases = few if work.family in _FEW_PIECES else many
        # The rounds of a loop share their exchange phases.
        phases[key] = max(phases.get(key, 0), math.ceil(work.cycles.phases / work.repeats))
    compute_sets = sum(max(1, count) for count in (*many.values(), *few.values()))
    return Steps(sum(many.values()), sum(few.values()), compute_sets, len(kinds), calls)


@remembered
def _alike(step: Step) -> Mapping[str, int]:
    """Return a number for each op that only equal ops share: those of equal kind, shapes, types and attributes."""
    numbers: dict[object, int] = {}

    def without_names(value: Argument) -> object:
        if isinstance(value, Ref):
            tensor = step.tensors.get(value)
            return None if tensor is None else (tensor.shape, tensor.dtype)
        return tuple(map(without_names, value)) if isinstance(value, tuple) else value

    alike = {}
    for op in step.ops:
        arguments = without_names((*op.arguments, *(value for _, value in op.keywords)))
        results = tuple(None if result is None else (result.shape, result.dtype) for result in op.results)
        alike[op.name] = numbers.setdefault((op.target, arguments, results, op.hints), len(numbers))
    return alike


def code_bytes(
    steps: Steps, host_tensors: float, transfers: int, ring: int, constants: MemoryConstants
) -> dict[str, float]:
    """Return bytes of code on each tile by category; `transfers` are copies between IPUs, `ring` its members or 0.

    Links join 64 IPUs at most, so rings, one step of which each member adds, do not grow with the replicas beyond them
    ("Memory and Performance Optimisation on the IPU", 4.3.1 and table 4.1; GCL's collectives are hierarchical).
    """
    collective = ring > 1
    return {
        profile.EXCHANGE_CODE: (
            constants.exchange_code_bytes_per_phase * steps.phases
            + constants.exchange_code_bytes_per_copy * steps.copies
            + constants.collective_exchange_bytes * collective
        ),
        profile.CONTROL_CODE: (
            constants.control_code_bytes_per_call * steps.calls + constants.collective_control_bytes * collective
        ),
        profile.VERTEX_STATE: constants.vertex_state_bytes_per_compute_set * steps.compute_sets,
        profile.VERTEX_CODE: constants.vertex_code_bytes_per_kind * steps.kinds,
        profile.HOST_EXCHANGE_CODE: constants.host_exchange_bytes_per_tensor * host_tensors,
        profile.GLOBAL_EXCHANGE_CODE: (
            constants.global_exchange_bytes_per_transfer * transfers
            + constants.global_exchange_bytes_per_replica * ring * collective
        ),
        profile.RESERVED: constants.reserved_bytes,
    }
