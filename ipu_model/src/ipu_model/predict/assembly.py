"""Assemble the profile of a program from the results of the model's parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_model.optimiser import OptimiserSpec, weight_update
from ipu_model.predict.band import error_band
from ipu_model.predict.compilation import compilation_seconds
from ipu_model.predict.costs import Costs
from ipu_model.predict.hardware import System
from ipu_model.predict.host import CallTime, HostWork
from ipu_model.predict.memory.out_of_memory import note_on_memory
from ipu_model.predict.op_profiles import ops_of, updates_of
from ipu_model.predict.order import Order
from ipu_model.predict.profile import Machine, Memory, Profile, Span
from ipu_model.predict.program import Program
from ipu_model.predict.time import DeviceTime


@dataclass(frozen=True)
class Parts:
    """The results of the model's parts for one program and one host."""

    program: Program
    host: HostWork
    costs: Costs
    order: Order
    memory: Memory
    time: DeviceTime
    call: CallTime


def assembled(parts: Parts) -> Profile:
    """Return the profile."""
    program, memory, time, call = parts.program, parts.memory, parts.time, parts.call
    ops = ops_of(program, parts.costs, parts.order)
    band, reason = error_band(program, ops, time.shares)
    return Profile(
        name=program.name,
        machine=machine_of(program.system),
        training=program.training,
        samples_per_call=program.samples_per_call,
        device_seconds_per_call=call.device,
        call_seconds=call.total,
        host_seconds_per_call=call.loader + call.host,
        limited_by=limited_by(time, call),
        error_band=band,
        cycles=time.cycles,
        memory=memory,
        timeline=_timeline(time, call),
        ops=ops,
        compilation_seconds=compilation_seconds(program, parts.costs),
        shares=time.shares,
        options=_options(program, parts.host),
        flops_per_call=float(sum(op.flops * op.executions for op in ops)) * program.replicas,
        notes=_notes(program, memory, reason),
        updates=updates_of(program),
        layers=program.step.layers,
        host=parts.host,
        replicas=program.replicas,
        device_iterations=program.batching.device_iterations,
        io_tiles=program.io_tiles,
        program=program,
    )


def machine_of(system: System) -> Machine:
    """Return what a profile says about a system."""
    chip = system.chip
    return Machine(
        system.name, system.title, chip.name, system.ipus, chip.tiles, chip.tile_bytes, chip.clock_hz,
        chip.exchange_bytes_per_cycle, float(chip.data_path_bytes),
    )  # fmt: skip


def limited_by(time: DeviceTime, call: CallTime) -> str:
    """Return the bottleneck of the program (see `Profile.limited_by`)."""
    if call.waits_for_loader:
        return "host loader"
    if not call.overlaps and call.loader > max(call.device, call.host):
        return "host loader"
    if call.waits_for_host:
        return "host call"
    return time.limited_by


def _timeline(time: DeviceTime, call: CallTime) -> tuple[Span, ...]:
    """Return the host's and the device's spans for one call; an overlapping loader prepares the next call meanwhile."""
    begin = 0.0 if call.overlaps else call.loader
    spans = [replace(span, start=span.start + begin + call.host) for span in time.timeline]
    if call.loader:
        what = "loading the next call" if call.overlaps else "loading"
        spans.append(Span("loader", "load", 0.0, call.loader, what))
    return (*spans, Span("host", "call", begin, call.host + call.device, "call"))


def _options(program: Program, host: HostWork) -> dict[str, str | int | float | bool]:
    batching, settings = program.batching, program.settings
    chosen: dict[str, str | int | float | bool] = {
        "micro-batch size": program.samples_per_micro_batch,
        "gradient accumulation": batching.accumulation,
        "device iterations": batching.device_iterations,
        "replicas": program.replicas,
        "processes": program.processes,
        "IPUs per replica": program.ipus_per_replica,
        "execution": program.execution.value,
        "recomputation": program.recomputation.value,
        "output mode": program.returns.keep.value,
        "half partials": settings.half_partials,
        "inputs": ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in program.step.inputs),
        "weights": _types_of_weights(program),
        "synthetic data": program.synthetic_data,
        "loading": host.loading.value,
        "loader workers": host.workers,
        "loader seconds per sample": host.seconds_per_sample,
        "source of loader rate": host.source,
    }
    if host.hosts > 1:
        chosen["hosts"] = host.hosts
    if host.cores_per_host:
        chosen["cores of a host"] = host.cores_per_host
    if program.optimiser is not None:
        chosen["optimiser"] = program.optimiser.family
        chosen["optimiser state"] = _types_of_state(program.optimiser)
        if program.accumulates:
            chosen["gradient accumulators"] = str(program.optimiser.accum_dtype)
    for ipu, proportion in sorted(settings.available_memory_proportion.items()):
        chosen[f"available memory proportion of IPU{ipu}"] = proportion
    locations = program.locations
    for name in ("activations", "weights", "optimiser", "accumulators"):
        where = getattr(locations, name)
        if not where.on_chip or where.sharded:
            chosen[f"location of {name}"] = ("on chip" if where.on_chip else "off chip") + (", sharded" * where.sharded)
    if program.io_tiles:
        chosen["I/O tiles"] = program.io_tiles
    return chosen


def _types_of_weights(program: Program) -> str:
    """Return the types of the weights, without those of buffers."""
    tensors, weights = program.step.tensors, [each for each in program.step.variables if not each.is_buffer]
    return ", ".join(dict.fromkeys(str(tensors[each.tensor].dtype) for each in weights)) or "none"


def _types_of_state(spec: OptimiserSpec) -> str:
    """Return the types of the state that an optimiser keeps for each element of a weight, in the optimiser's order."""
    updates = [weight_update(spec, hyper) for hyper in spec.groups or (spec.default,)]
    longest = max((update.weight_sized_state for update in updates), key=len)
    return " and ".join(str(slot.dtype) for slot in longest) or "none"


def _notes(program: Program, memory: Memory, reason: str) -> tuple[str, ...]:
    return tuple(note for note in (note_on_memory(memory, program), reason) if note)
