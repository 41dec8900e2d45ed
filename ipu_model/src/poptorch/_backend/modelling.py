"""From a captured graph and options to the program to model, its machine, and the times of its transfers."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipu_model.batching import Batching, Keep
from ipu_model.capture.graph import Graph
from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict import hardware
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import Chip, System
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.recomputation import default_recomputation
from ipu_model.step import Step, ipus_in_use
from poptorch._backend.settings import (
    MAX_IPUS,
    VERSIONS,
    batching_of,
    ipus_of_replica,
    overlaps,
    reserved_ipus,
    returns_of,
)
from poptorch.ops.overlap import INPUT, OUTPUT
from poptorch.options import Options
from poptorch.options.strategies import PipelinedExecution, runs_stages_at_once

_LOCATION_FIELDS = {
    "onChip": "on_chip",
    "useReplicatedTensorSharding": "sharded",
    "minElementsForOffChip": "least_off_chip",
    "minElementsForReplicatedTensorSharding": "least_sharded",
}
_VARIABLE = "IPU_MODEL_MACHINE"
_DEFAULT_CHIP = "GC200"
# Chips without a version number of their own use this one: to PopTorch, a Bow IPU is a Mk2 IPU.
_MK2 = 2


def program_of(
    graph: Graph,
    step: Step,
    options: Options,
    *,
    training: bool,
    optimiser: OptimiserSpec | None = None,
    groups: Mapping[str, int | None] | None = None,
    machine: str | System | None = None,
) -> Program:
    """Return the program to model under (resolved) options; `groups` are the groups of `optimiser`, by parameter."""
    backend, per_replica = options._backend, ipus_of_replica(step)
    batching, processes = _over_processes(batching_of(options), per_replica)
    processes *= max(1, options.Distributed.numProcesses)
    reserved = reserved_ipus(per_replica * batching.replicas, options) * processes
    system = machine_for(options, reserved, machine)
    at_once = runs_stages_at_once(options._execution_strategy) and backend.pipelining
    execution = Execution.PIPELINED if at_once else Execution.SHARDED
    recomputation = Recomputation.NONE
    if training and backend.recomputation is not None:
        # They are in the order of PopART's RecomputationType (options reference, section 9).
        recomputation = list(Recomputation)[backend.recomputation]
    elif training:
        recomputation = default_recomputation(execution, len(ipus_in_use(step)), training=True)
    return Program(
        step=step,
        training=training,
        batching=batching,
        returns=returns_of(options),
        system=system,
        execution=execution,
        settings=_settings(options, system),
        optimiser=optimiser,
        groups=dict(groups or {}),
        recomputation=recomputation,
        locations=Locations(
            *(_location(options, category) for category in ("activation", "weight", "optimizer", "accumulator"))
        ),
        io_tiles=options.TensorLocations("numIOTiles") if options.TensorLocations.exists("numIOTiles") else 0,
        overlaps_input=backend.explicit_io and overlaps(graph, INPUT),
        overlaps_output=backend.explicit_io and overlaps(graph, OUTPUT),
        prefetch_depth=backend.prefetch_depth,
        synthetic_data=backend.synthetic_data,
        processes=processes,
        reserved_ipus=reserved if options.auto_round_num_ipus else None,
        name=str(options.model_name) if options.exists("model_name") else "training" if training else "inference",
    )


def _over_processes(batching: Batching, ipus_per_replica: int) -> tuple[Batching, int]:
    """Return the batching of one process and the smallest number of processes that can run all replicas."""
    for processes in range(1, batching.replicas + 1):
        replicas = batching.replicas // processes
        whole = batching.replicas % processes == 0 and replicas % batching.input_group == 0
        if whole and replicas * ipus_per_replica <= MAX_IPUS:
            return replace(batching, replicas=replicas), processes
    raise Error(
        f"inputReplicaGrouping: {batching.input_group} replicas of {ipus_per_replica} IPUs share their input, and one "
        f"process has at most {MAX_IPUS} IPUs. Use smaller groups."
    )


def _settings(options: Options, system: System) -> CostSettings:
    proportions = {}
    for ipu, share in options.available_memory_proportion.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise Error(
                f"setAvailableMemoryProportion: the share of IPU{ipu} must be a number between 0 and 1, not {share!r}."
            )
        proportions[ipu] = float(share)
    return CostSettings(
        device=Device(chip=system.chip),
        half_partials=options._backend.half_matmuls,
        half_partials_of_convolutions=options._backend.half_convolutions,
        available_memory_proportion=proportions,
        stable_norm=options._backend.stable_norm,
    )


def _location(options: Options, category: str) -> Location:
    key = f"location_{category}"
    stored = options.TensorLocations(key) if options.TensorLocations.exists(key) else {}
    chosen: dict[str, Any] = {field: stored[name] for name, field in _LOCATION_FIELDS.items() if name in stored}
    # Phased execution keeps tensors off chip unless told otherwise.
    chosen["on_chip"] = bool(chosen.get("on_chip", isinstance(options._execution_strategy, PipelinedExecution)))
    return Location(**chosen)


def machine_for(options: Options, ipus: int, wanted: str | System | None = None) -> System:
    """Return the machine for a program that occupies `ipus` IPUs.

    `wanted` takes precedence. Otherwise `useOfflineIpuTarget`, or else `POPTORCH_IPU_MODEL_VERSION`, chooses the chip,
    and `IPU_MODEL_MACHINE` names the machine if it has that chip. Otherwise the machine is the smallest system of that
    chip, or of GC200, with enough IPUs. A chip's name stands for its smallest system with enough IPUs.
    """
    if wanted is not None:
        return hardware.system_with_room(wanted, ipus, "the argument machine")
    return modelled_system(ipus, int(options.ipu_version) if options.exists("ipu_version") else None)


def modelled_system(ipus: int, version: int | None = None) -> System:
    """Return the machine that the environment chooses for `ipus` IPUs, of the chip of offline version `version`."""
    if version is None:
        version = VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", ""))
    named = os.environ.get(_VARIABLE)
    if named and (version is None or version_of(hardware.chip(named)) == version):
        return hardware.system_with_room(named, ipus, f"the environment variable {_VARIABLE}")
    chip = _DEFAULT_CHIP if version is None else hardware.chip_of_offline_target(version).name
    return hardware.system_with(chip, ipus)


def version_of(chip: Chip) -> int:
    """Return PopTorch's version number of a chip: 1, 2 or 21."""
    by_name = {name: version for version, name in hardware.known_hardware().offline_versions.items()}
    return by_name.get(chip.name, _MK2)


# --- the modelled times of one call's input and output transfers, as PopTorch's performance counters in seconds
#
# A call of S = D x A steps is a row of D pipelines of A (training) or one of D (inference) micro-batches, with D
# iterations and an accumulation of A. With K stages a pipeline of M micro-batches has M + K - 1 cycles (training:
# M + 2 (K - 1)). All cycles, including weight updates, are assumed to be equally long and fill the device time from the
# first transfer on.

EVENTS = ("input", "input_complete", "output", "output_complete")

PerfCounters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]
# Seconds since the start of a call at which one transfer begins and ends.
Ticks = tuple[float, float]


def perf_counters(program: Program, profile: Profile, *, anchors: int = 0) -> PerfCounters:
    """Return, by event, the times of each tensor by replica, then by step; the last `anchors` outputs have none."""
    arriving, leaving = ([], []) if program.synthetic_data else _transfers(program, profile)
    inputs, outputs = len(program.step.inputs), len(program.step.outputs) - anchors
    counters = {}
    for name, ticks, tensors in (("input", arriving, inputs), ("output", leaving, outputs)):
        everywhere = ticks * program.batching.replicas
        counters[name] = [[begin for begin, _ in everywhere] for _ in range(tensors)]
        counters[f"{name}_complete"] = [[end for _, end in everywhere] for _ in range(tensors)]
    return counters


def latency(counters: PerfCounters, start: str, end: str) -> Latency:
    """Return the minimum, maximum and average seconds from event `start` to event `end`; zeros without data.

    The earliest start and the latest end count of several tensors, and of several starts that lead to one end.
    """
    starts = [min(ticks) for ticks in zip(*counters[start])]
    ends = [max(ticks) for ticks in zip(*counters[end])]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    group = max(1, len(starts) // len(ends))
    firsts = [min(starts[index : index + group]) for index in range(0, len(starts), group)]
    spans = [max(0.0, last - first) for first, last in zip(firsts, ends)]
    # Rounding must not push the average outside the range from minimum to maximum.
    average = min(max(sum(spans) / len(spans), min(spans)), max(spans))
    return min(spans), max(spans), average


def _transfers(program: Program, profile: Profile) -> tuple[list[Ticks], list[Ticks]]:
    # Inputs travel at the start of a micro-batch's first cycle, results at the end of its last forward cycle. A single
    # result of a call leaves with the last micro-batch.
    batching, returns = program.batching, program.returns
    depth = len(program.step.stages) if program.execution is not Execution.SHARDED else 1
    pipelines = batching.device_iterations if program.training else 1
    micro_batches = batching.steps // pipelines
    cycles = micro_batches + (2 if program.training else 1) * (depth - 1)
    # A run starts when the device does, which first waits for the host.
    device = [span for span in profile.timeline if span.kind not in ("load", "call")]
    work = [span.start for span in device if span.kind != "wait"]
    origin = min(work, default=0.0) - min((span.start for span in device), default=0.0)
    cycle = (profile.device_seconds_per_call - origin) / (pipelines * cycles)
    kept = [step for step in range(batching.steps) if returns.kept(step, batching.steps)]
    returned = 1 if returns.keep in (Keep.FINAL, Keep.SUM) else max(1, len(kept))
    seconds_in = min(_seconds(profile, "stream in") / batching.steps, cycle)
    seconds_out = min(_seconds(profile, "stream out") / returned, cycle - seconds_in)
    starts = [origin + (row * cycles + number) * cycle for row in range(pipelines) for number in range(micro_batches)]
    ends = [start + depth * cycle for start in starts]
    chosen = ends[-1:] if returns.keep is Keep.SUM else [ends[step] for step in kept]
    return [(start, start + seconds_in) for start in starts], [(end - seconds_out, end) for end in chosen]


def _seconds(profile: Profile, kind: str) -> float:
    by_resource: defaultdict[str, float] = defaultdict(float)
    for span in profile.timeline:
        if span.kind == kind:
            by_resource[span.resource] += span.seconds
    return max(by_resource.values(), default=0.0)
