"""From a captured graph and options to the `Program` that the performance model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.graph import Graph
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import System
from ipu_model.program import Execution, Location, Locations, Program, Recomputation
from poptorch._backend.compilation import batching_of, returns_of
from poptorch._backend.modelling.machine import machine_for
from poptorch._backend.rules import MAX_IPUS, ipus_of_replica, is_pipelined, reserved_ipus
from poptorch.ops.overlap import INPUT, OUTPUT, overlaps
from poptorch.options import Options
from poptorch.options.strategies import PipelinedExecution, ShardedExecution

# In the order of PopART's RecomputationType (options reference, section 9).
_RECOMPUTATION = (
    Recomputation.NONE, Recomputation.STANDARD, Recomputation.NORM_ONLY, Recomputation.PIPELINE, Recomputation.ALL,
)  # fmt: skip

_LOCATION_FIELDS = {
    "onChip": "on_chip",
    "useReplicatedTensorSharding": "sharded",
    "minElementsForOffChip": "least_off_chip",
    "minElementsForReplicatedTensorSharding": "least_sharded",
}


def program_of(
    graph: Graph,
    options: Options,
    *,
    training: bool,
    optimiser: OptimiserSpec | None = None,
    groups: Mapping[str, int | None] | None = None,
    machine: str | System | None = None,
) -> Program:
    """Return what is modelled of a captured graph under (resolved) options.

    `groups` maps names of parameters to the parameter groups of `optimiser`.

    Raises:
        Error: a machine that is too small or does not exist, or a share of memory that no tile has.
    """
    backend = options._backend
    batching, processes = over_processes(batching_of(options), ipus_of_replica(graph))
    processes *= max(1, options.Distributed.numProcesses)
    reserved = reserved_ipus(ipus_of_replica(graph) * batching.replicas, options) * processes
    system = machine_for(options, reserved, machine)
    return Program(
        graph=graph,
        training=training,
        batching=batching,
        returns=returns_of(options),
        system=system,
        execution=_execution(options),
        settings=_settings(options, system),
        optimiser=optimiser,
        groups=dict(groups or {}),
        recomputation=_recomputation(graph, options) if training else Recomputation.NONE,
        locations=_locations(options),
        io_tiles=options.TensorLocations("numIOTiles") if options.TensorLocations.exists("numIOTiles") else 0,
        overlaps_input=backend.explicit_io and overlaps(graph, INPUT),
        overlaps_output=backend.explicit_io and overlaps(graph, OUTPUT),
        prefetch_depth=backend.prefetch_depth,
        synthetic_data=backend.synthetic_data,
        processes=processes,
        reserved_ipus=reserved if options.auto_round_num_ipus else None,
        name=model_name(options, training),
    )


def over_processes(batching: Batching, ipus_per_replica: int) -> tuple[Batching, int]:
    """Return the batching of one process and the number of processes: the fewest that can have all the replicas.

    Raises:
        Error: replicas that share their input need more IPUs than one process can have.
    """
    for processes in range(1, batching.replicas + 1):
        replicas = batching.replicas // processes
        whole = batching.replicas % processes == 0 and replicas % batching.input_group == 0
        if whole and replicas * ipus_per_replica <= MAX_IPUS:
            return replace(batching, replicas=replicas), processes
    raise Error(
        f"inputReplicaGrouping: {batching.input_group} replicas of {ipus_per_replica} IPUs share their input, and one "
        f"process has at most {MAX_IPUS} IPUs. Use smaller groups."
    )


def model_name(options: Options, training: bool) -> str:
    """Return the name of reports: that of `Options.modelName`, else "training" or "inference"."""
    if options.exists("model_name"):
        return str(options.model_name)
    return "training" if training else "inference"


def _execution(options: Options) -> Execution:
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)
    if pipelined and options._backend.pipelining:
        return Execution.PIPELINED
    return Execution.SHARDED


def _recomputation(graph: Graph, options: Options) -> Recomputation:
    """Return the mode that was set, else PopTorch's: `Pipeline` for pipelines of several IPUs."""
    chosen = options._backend.recomputation
    if chosen is not None:
        return _RECOMPUTATION[chosen]
    return Recomputation.PIPELINE if is_pipelined(graph, options) else Recomputation.NONE


def _settings(options: Options, system: System) -> CostSettings:
    backend = options._backend
    return CostSettings(
        device=Device(chip=system.chip),
        half_partials=backend.half_matmuls,
        half_partials_of_convolutions=backend.half_convolutions,
        available_memory_proportion={
            ipu: _proportion(ipu, share) for ipu, share in options.available_memory_proportion.items()
        },
        stable_norm=backend.stable_norm,
    )


def _proportion(ipu: int, share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise Error(
            f"setAvailableMemoryProportion: the share of IPU{ipu} must be a number between 0 and 1, not {share!r}."
        )
    return float(share)


def _locations(options: Options) -> Locations:
    return Locations(
        activations=_location(options, "location_activation"),
        weights=_location(options, "location_weight"),
        optimiser=_location(options, "location_optimizer"),
        accumulators=_location(options, "location_accumulator"),
    )


def _location(options: Options, key: str) -> Location:
    """Return one category's place; phased execution keeps tensors off chip unless told otherwise."""
    phased = not isinstance(options._execution_strategy, PipelinedExecution)
    chosen: dict[str, Any] = {"on_chip": not phased}
    stored = options.TensorLocations(key) if options.TensorLocations.exists(key) else {}
    chosen |= {_LOCATION_FIELDS[name]: value for name, value in stored.items() if name in _LOCATION_FIELDS}
    chosen["on_chip"] = bool(chosen["on_chip"])
    return Location(**chosen)
