"""Rules on options and on the traced program, checked when a model is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ipu_model.capture.annotations import marks_of
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.step import Placement, fewest_micro_batches, forward_stages, ipus_in_use
from poptorch._impl import createPoptorchError
from poptorch._logging import logger, native_logger
from poptorch.enums import ConnectionType, OutputMode, OverlapMode
from poptorch.ops.overlap import INPUT, OUTPUT
from poptorch.options import Options
from poptorch.options.strategies import runs_stages_at_once

_VERSIONS = ("ipu1", "ipu2", "ipu21")


def check_target(options: Options) -> None:
    """Refuse options that a simulator or an offline target cannot follow, and warn about those without effect.

    Raises:
        Error: names the option and what works instead.
    """
    offline = options.connection_type == ConnectionType.Never
    if _simulator_asked_for(options):
        _check_version()
        if offline:
            raise createPoptorchError(
                "The IPU model cannot be an offline target: useIpuModel(True), or POPTORCH_IPU_MODEL, "
                "excludes connectionType(Never) and useOfflineIpuTarget(). Use one of the two."
            )
    if offline and options.exists("ipu_id"):
        raise createPoptorchError(
            f"useIpuId({options.ipu_id}) chooses a device, an offline target (connectionType(Never), "
            "useOfflineIpuTarget()) has none. Use one of the two."
        )
    if offline and options._backend.counts_cycles:
        raise createPoptorchError(
            "logCycleCount: the cycle counter is only supported on actual IPU hardware and on the IPU Model, and an "
            "offline target does not run. Leave it off: ipu_model.profile(executor) has the modelled cycles."
        )
    _warn_of_processes(options)


def _simulator_asked_for(options: Options) -> bool:
    """Return whether options or environment choose the simulator, and log the choice."""
    if options.exists("use_model"):
        native_logger.info("From the user configuration: Ipu model: %s", _enabled(options.use_model))
        return bool(options.use_model)
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        if os.environ.get(name):
            chosen = _as_int(name) != 0
            native_logger.info("From %s environment variable: Ipu model: %s", name, _enabled(chosen))
            if chosen:
                return True
    return False


def _enabled(chosen: bool) -> str:
    return "Enabled" if chosen else "Disabled"


def _as_int(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise createPoptorchError(f"{name} must be an integer, not {text!r}. Use 1 or 0.") from None


def _check_version() -> None:
    version = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "ipu2")
    if version not in _VERSIONS:
        raise createPoptorchError(f"POPTORCH_IPU_MODEL_VERSION must be one of {', '.join(_VERSIONS)}, not {version!r}.")


def _warn_of_processes(options: Options) -> None:
    processes = options.Distributed.numProcesses
    if processes > 1 and options._backend.cache_folder is None:
        logger.warning(
            "%d processes and no executable cache: every process compiles the model. "
            "poptorch.Options().enableExecutableCaching(path) lets one compile for all.", processes,
        )  # fmt: skip


MAX_IPUS = 64


def is_pipelined(graph: Graph, options: Options) -> bool:
    """Whether the program runs as a pipeline: the strategy asks for it, and there is more than one IPU."""
    return runs_stages_at_once(options._execution_strategy) and len(ipus_in_use(step_of(graph))) > 1


def check_pipeline(graph: Graph, options: Options, *, training: bool) -> None:
    """Refuse a pipeline with too few micro-batches, or whose stages do not follow the data flow.

    Raises:
        Error: names the option, the smallest value that works and what it is now.
    """
    if not is_pipelined(graph, options):
        return
    stages = forward_stages(graph.block_entries)
    if not training and options.device_iterations < stages:
        raise createPoptorchError(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline "
            f"stages ({stages}) when using poptorch.PipelinedExecution. It is {options.device_iterations}; "
            "poptorch.ShardedExecution has no such minimum."
        )
    needed = fewest_micro_batches(stages, training=True)
    accumulation = options.Training.gradient_accumulation
    if training and accumulation < needed:
        raise createPoptorchError(
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of "
            f"pipeline stages ({needed}) when using poptorch.PipelinedExecution. Please note that a model "
            f"with {stages} pipeline stages in PopTorch will have an additional {stages - 1} stages when "
            f"training. It is {accumulation}; poptorch.ShardedExecution has no such minimum."
        )
    _check_order(graph)


def _check_order(graph: Graph) -> None:
    """Check that stage numbers do not decrease along the data flow of the forward pass."""
    for earlier, place in _data_flow(graph):
        if earlier.stage > place.stage:
            raise createPoptorchError(
                f"Block '{place.block}' is pipeline stage {place.stage} but uses a result of block "
                f"'{earlier.block}', stage {earlier.stage}: stages of a pipeline must not decrease along "
                "the data flow. Use poptorch.AutoStage.AutoIncrement, or list the blocks as separate "
                "stages and fix their IPUs with poptorch.Stage(...).ipu(n)."
            )


def check_phases(graph: Graph) -> None:
    """Refuse phases that do not follow the data flow of the forward pass: they run one after another.

    Raises:
        Error: names the two blocks, and how to list them.
    """
    for earlier, place in _data_flow(graph):
        if place.phase is None or earlier.phase is None:
            continue
        if earlier.phase > place.phase:
            raise createPoptorchError(
                f"Block '{place.block}' is in phase {place.phase} but uses a result of block '{earlier.block}', "
                f"phase {earlier.phase}, which runs later. List the blocks in the order in which the data flows; a "
                "part of the model that comes back needs a block and a phase of its own."
            )


def _data_flow(graph: Graph) -> Iterator[tuple[Placement, Placement]]:
    """Yield the placements of every pair of forward ops in which the second reads a result of the first."""
    step = step_of(graph)
    for op in step.ops:
        for tensor in op.reads if not op.is_backward else ():
            producer = step.producer(tensor)
            if producer is not None:
                yield producer.placement, op.placement


def ipus_of_replica(graph: Graph) -> int:
    """Return the number of IPUs of one replica: the highest IPU with an op or block, plus one."""
    return step_of(graph).ipus[-1] + 1


def reserved_ipus(used: int, options: Options) -> int:
    """Return the IPUs that a process occupies: those it uses, or the next power of 2 with `autoRoundNumIPUs`."""
    return 1 << (used - 1).bit_length() if options.auto_round_num_ipus else used


def check_ipus(graph: Graph, options: Options, *, one_process: bool = True) -> None:
    """Refuse more IPUs than one process can have, and log counts that hardware would round up.

    Without `one_process`, several processes may share the replicas, so only one replica must fit.

    Raises:
        Error: names the number of IPUs and how it is computed.
    """
    per_replica = ipus_of_replica(graph)
    total = per_replica * options.replication_factor
    limited = total if one_process else per_replica
    if limited > MAX_IPUS:
        raise createPoptorchError(
            f"Too many IPUs requested ({limited}): {per_replica} for the model x {limited // per_replica} "
            f"replicas, at most {MAX_IPUS} for one process. Use fewer replicas, or several processes."
        )
    if not total & (total - 1):
        return
    reserved = 1 << (total - 1).bit_length()
    if options.auto_round_num_ipus:
        logger.warning(
            "The model uses %d IPUs: %d are reserved, the next power of 2, and %d of them "
            "left idle.", total, reserved,
            reserved - total,
        )  # fmt: skip
    else:
        logger.info(
            "The model specifies %d IPUs. On hardware %d have to be reserved (a power of 2 "
            "or maximum of 64 per process), which fails unless "
            "poptorch.Options().autoRoundNumIPUs(True) is set.", total, reserved,
        )  # fmt: skip


def check_buffers(graph: Graph, options: Options) -> None:
    """Refuse buffers that a program changes in place if all replicas would have to share them.

    Raises:
        Error: names the buffer, and the option that lets each replica keep its own.
    """
    if options.replication_factor <= options.input_group_size or not options.broadcast_buffers:
        return
    for variable in graph.variables:
        if variable.is_buffer and variable.node in graph.assigned:
            raise createPoptorchError(
                "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming "
                "out of sync between replicas, you can disable buffer broadcasting using "
                f"poptorch.Options.broadcastBuffers(False). (Buffer '{variable.name}' is changed in place, and the "
                f"model has {options.replication_factor} replicas.)"
            )


def check_named_buffers(graph: Graph, options: Options) -> None:
    """Refuse names of buffers that the program does not have (`Options.updatableNamedBuffers`).

    Raises:
        Error: names them, and the buffers that there are.
    """
    names = options._backend.updatable_buffers
    known = sorted(name for variable in graph.variables if variable.is_buffer for name in variable.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise createPoptorchError(
            f"updatableNamedBuffers: the model has no floating-point buffer named {', '.join(unknown)}. It "
            f"has: {', '.join(known) or 'none'}."
        )


def check_returns(graph: Graph, options: Options) -> None:
    """Refuse a return period that does not divide the iterations, or that a pipeline cannot keep.

    Raises:
        Error: names both numbers, or what works instead.
    """
    if options.output_mode != OutputMode.EveryN:
        return
    period, iterations = options.output_return_period, options.device_iterations
    if period > iterations or iterations % period:
        raise createPoptorchError(
            f"Return period must be a divisor of deviceIterations: outputMode(EveryN, {period}) with "
            f"deviceIterations({iterations})."
        )
    if is_pipelined(graph, options):
        raise createPoptorchError(
            "OutputMode.EveryN is not available when the model is pipelined over several IPUs. Use "
            "OutputMode.All, or poptorch.ShardedExecution."
        )


def overlaps(graph: Graph, key: str) -> bool:
    """Whether transfers of inputs (`key` is `INPUT`) or outputs (`OUTPUT`) overlap with the computation."""
    return any(OverlapMode(mark) is not OverlapMode.NoOverlap for mark in marks_of(graph, key))


def check_overlap(graph: Graph, options: Options) -> None:
    """Refuse overlapped transfers without I/O tiles, and output modes that cannot overlap.

    Raises:
        Error: names the rule and what works.
    """
    if not overlaps(graph, INPUT) and not overlaps(graph, OUTPUT):
        return
    if not options.TensorLocations.exists("numIOTiles"):
        raise createPoptorchError(
            "No IO tiles allocated: overlapped host transfers run on tiles of their own. Set them aside with "
            "poptorch.Options().TensorLocations.numIOTiles(32), an even number from 32 to 192."
        )
    if options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise createPoptorchError(
            f"Unsupported output mode {OutputMode(options.output_mode).name} for overlapped host transfers. Use "
            "poptorch.Options().outputMode(poptorch.OutputMode.All), or OutputMode.Sum."
        )
