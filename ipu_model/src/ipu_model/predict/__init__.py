"""The performance model: op costs, the order of execution, the memory of every tile, and the time of a call."""

from __future__ import annotations

from dataclasses import replace

from ipu_model.errors import Error
from ipu_model.optimiser import weight_update
from ipu_model.predict.band import error_band
from ipu_model.predict.costs import costs_of, ops_of, updates_of
from ipu_model.predict.host import CallTime, HostWork, call_time
from ipu_model.predict.memory import memory_of
from ipu_model.predict.memory.out_of_memory import note_on_memory
from ipu_model.predict.profile import Machine, Memory, Profile, Span
from ipu_model.predict.program import Program, remembered
from ipu_model.predict.time import DeviceTime, time_of
from ipu_model.step import Phase, Source


def profile_program(program: Program, host: HostWork | None = None) -> Profile:
    """Return everything the model says about a program; `Error`: too many IPUs, or hints that no device can follow."""
    host = host or HostWork()
    check_machine(program)
    memory, time = memory_of_program(program), time_of(program)
    system, chip, ops = program.system, program.system.chip, ops_of(program)
    call = call_time(program, host, device_seconds=chip.seconds(time.device_cycles))
    band, reason = error_band(program, ops, time.shares)
    rates = chip.clock_hz, chip.exchange_bytes_per_cycle, float(chip.data_path_bytes)
    return Profile(
        name=program.name,
        machine=Machine(system.name, system.title, chip.name, system.ipus, chip.tiles, chip.tile_bytes, *rates),
        training=program.training,
        samples_per_call=program.samples_per_call,
        device_seconds_per_call=call.device,
        call_seconds=call.total,
        host_seconds_per_call=call.loader + call.host,
        limited_by=call.bottleneck or time.limited_by,
        error_band=band,
        cycles=time.cycles,
        memory=memory,
        timeline=_timeline(time, call),
        ops=ops,
        compilation_seconds=compilation_seconds(program),
        shares=time.shares,
        options=_options(program, host),
        flops_per_call=float(sum(op.flops * op.executions for op in ops)) * program.replicas,
        notes=tuple(note for note in (*program.step.notes, note_on_memory(memory, program), reason) if note),
        updates=updates_of(program),
        layers=program.step.layers,
        host=host,
        replicas=program.replicas,
        device_iterations=program.batching.device_iterations,
        io_tiles=program.io_tiles,
        program=program,
    )


def profile_lately(program: Program, host: HostWork | None = None) -> Profile:
    return replace(_profile(program, host or HostWork()), program=program)


@remembered
def _profile(program: Program, host: HostWork) -> Profile:
    return replace(profile_program(program, host), program=None)


def samples_per_second(program: Program, host: HostWork | None = None) -> float:
    check_machine(program)
    device_seconds = program.system.chip.seconds(time_of(program).device_cycles)
    return program.samples_per_call / call_time(program, host or HostWork(), device_seconds=device_seconds).total


def memory_of_program(program: Program) -> Memory:
    """Return the memory of a program, cached for any number of micro-batches that accumulate, and of updates."""
    batching = replace(program.batching, device_iterations=1, accumulation=min(2, program.batching.accumulation))
    return _memory(replace(program, batching=batching, name=""))


_memory = remembered(memory_of)


def check_machine(program: Program) -> None:
    needed = program.ipus_per_replica * program.replicas
    if needed > program.system.ipus:
        raise Error(
            f"The program needs {needed} IPUs ({program.ipus_per_replica} for each of {program.replicas} replicas), "
            f"and {program.system.name} has {program.system.ipus}. Use a larger machine or fewer replicas."
        )


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
    weights = (program.step.tensors[v.tensor] for v in program.step.variables if not v.is_buffer)
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
        "weights": ", ".join(dict.fromkeys(str(weight.dtype) for weight in weights)) or "none",
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
    spec = program.optimiser
    if spec is not None:
        chosen["optimiser"] = spec.family
        # What each element of a weight has, in the optimiser's order.
        states = [weight_update(spec, hyper).weight_sized_state for hyper in spec.groups or (spec.default,)]
        chosen["optimiser state"] = " and ".join(str(slot.dtype) for slot in max(states, key=len)) or "none"
        if program.accumulates:
            chosen["gradient accumulators"] = str(spec.accum_dtype)
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


def compilation_seconds(program: Program) -> float:
    """Return how long Graphcore's compiler would take: a x IPUs of one replica + b x convolutions and linear layers.

    The line goes through published compilations (hardware reference, section F). Products of attention are no layers.
    """
    constants, step = program.calibration.compilation, program.step
    layers = 0
    for op in costs_of(step, program.settings).of(phase=Phase.FORWARD):
        if op.work.flops:
            operands = step.read_by(step.by_name[op.node])
            layers += any(t.of_weight or step.source(t.name) is Source.VARIABLE for t in operands)
    seconds = constants.seconds_per_ipu * len(step.ipus) + constants.seconds_per_layer * layers
    return seconds if program.training else seconds * constants.inference_share
