"""What the options ask for, in the engine's own terms, and the rules on options and on the traced program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, TensorSpec, info_of
from ipu_model.capture.operators import refusal
from ipu_model.capture.variables import device_dtype
from ipu_model.compute.gradients import LossScalingSettings
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.rounding import Overflow
from ipu_model.compute.session import RETURNED_DTYPE
from ipu_model.errors import Error, unsupported
from ipu_model.step import Placement, Step, fewest_micro_batches, forward_stages, ipus_in_use
from poptorch._logging import logger, native_logger
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, OverlapMode, ReductionType
from poptorch.options import Options
from poptorch.options.backend import LOSS_SCALING, validate_options
from poptorch.options.options import log_options
from poptorch.options.strategies import runs_stages_at_once

MAX_IPUS = 64
# Values of POPTORCH_IPU_MODEL_VERSION and the corresponding arguments of useOfflineIpuTarget.
VERSIONS = {"ipu1": 1, "ipu2": 2, "ipu21": 21}
_HALF_OVERFLOW, _REPORTS_CLIPPING = "IPU_MODEL_HALF_OVERFLOW", "IPU_MODEL_REPORT_CLIPPING"
_UNSUPPORTED_OPS = "IPU_MODEL_UNSUPPORTED_OPS"
_INDIVISIBLE = (
    "Invalid batch dimension: In the input {shape}, the batch dimension ({rows}) must be a multiple of "
    "Options.deviceIterations({batching.device_iterations}) * (Options.replicationFactor({batching.replicas}) / "
    "Options.inputReplicaGrouping({batching.input_group})) * "
    "Options.Training.gradientAccumulation({batching.accumulation}) = {batching.slices} because it is used to "
    "calculate the batch size which will be executed on the device in any given iteration. For a full explanation "
    "see the batching semantics page of the documentation. Nearest multiples: {nearest}."
)


def own_options(options: Options, training: bool) -> Options:
    """Return a frozen copy of `options` with the output mode resolved; `options` itself does not change."""
    own = options.clone()
    own._resolve_output_mode(OutputMode.Final if training else OutputMode.All)
    if not training and own.Training.gradient_accumulation != 1:
        pipelined = (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for "
            "pipelined execution instead."
        )
        raise Error(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value "
            "(1) when running a poptorch.inferenceModel()."
            + (pipelined if runs_stages_at_once(own._execution_strategy) else "")
        )
    own._freeze()
    return own


def batching_of(options: Options) -> Batching:
    """Return the batch arithmetic that the options ask for, or refuse counts below one, which PopTorch stores."""
    for name, value in (
        ("deviceIterations", options.device_iterations),
        ("Training.gradientAccumulation", options.Training.gradient_accumulation),
        ("replicationFactor", options.replication_factor),
    ):
        if value < 1:
            raise Error(f"poptorch.Options().{name} must be at least 1, not {value}.")
    return Batching(
        device_iterations=options.device_iterations,
        accumulation=options.Training.gradient_accumulation,
        replicas=options.replication_factor,
        input_group=options.input_group_size,
        orthogonal_groups=options.input_cgt == CommGroupType.Orthogonal,
    )


def returns_of(options: Options) -> Returns:
    kept = dict(zip(OutputMode, (Keep.FINAL, Keep.EVERY_N, Keep.ALL, Keep.SUM)))
    return Returns(kept[options.output_mode], options.output_return_period)


def micro_batch_specs(tensors: Sequence[Tensor], batching: Batching) -> list[TensorSpec]:
    specs = []
    for tensor in tensors:
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % batching.slices:
            below = rows // batching.slices * batching.slices
            nearest = f"{below} and {below + batching.slices}" if below else str(batching.slices)
            raise AssertionError(_INDIVISIBLE.format(shape=tensor.shape, rows=rows, batching=batching, nearest=nearest))
        shape = (rows // batching.slices, *tensor.shape[1:]) if tensor.dim() else ()
        specs.append(TensorSpec.contiguous(shape, device_dtype(tensor.dtype)))
    return specs


def arithmetic_of(options: Options) -> Arithmetic:
    """Half-precision results beyond the range are clipped, unless the user asks for infinities."""
    wanted = os.environ.get(_HALF_OVERFLOW) or Overflow.CLIP.value
    if wanted not in [overflow.value for overflow in Overflow]:
        raise Error(
            f"{_HALF_OVERFLOW} must be 'clip' (to +-65504, as IPUs most likely do) or 'infinity' (as GPUs do), "
            f"not {wanted!r}."
        )
    backend = options._backend
    return Arithmetic(
        half_partials=backend.half_matmuls or backend.half_convolutions,
        floating_point_exceptions=backend.floating_point_exceptions,
        overflow=Overflow(wanted),
        reports_clipping=os.environ.get(_REPORTS_CLIPPING, "0") not in ("", "0"),
    )


def loss_scaling_settings(graph: Graph, options: Options) -> LossScalingSettings | None:
    if not options._backend.adapts_loss_scaling:
        return None
    trained = [graph.spec(v.tensor).dtype for v in graph.variables if v.name in graph.gradients]
    if torch.float16 not in trained:
        raise Error(
            "Training.setAutomaticLossScaling watches the gradients of float16 weights, and the model trains none. "
            "Convert the model with half(), or leave automatic loss scaling off."
        )
    if options.Training.accumulation_and_replication_reduction_type != ReductionType.Mean:
        logger.warning(
            "Automatic loss scaling expects "
            "Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)."
        )
    settings = options._backend.loss_scaling
    for name, share in (("binEdgeLocation", settings.bin_edge), ("thresholdUpperCountProportion", settings.threshold)):
        if not 0.0 <= share <= 1.0:
            raise Error(f"{LOSS_SCALING}.{name} is a proportion between 0 and 1, not {share}.")
    if settings.period < 1:
        raise Error(f"{LOSS_SCALING}.updatePeriod must be at least 1, not {settings.period}.")
    return settings


# --- rules


def check_options(options: Options) -> None:
    batching_of(options)
    offline = options.connection_type == ConnectionType.Never
    if _simulator_asked_for(options):
        version = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "ipu2")
        if version not in VERSIONS:
            raise Error(f"POPTORCH_IPU_MODEL_VERSION must be one of {', '.join(VERSIONS)}, not {version!r}.")
        if offline:
            raise Error(
                "The IPU model cannot be an offline target: useIpuModel(True), or POPTORCH_IPU_MODEL, "
                "excludes connectionType(Never) and useOfflineIpuTarget(). Use one of the two."
            )
    if offline and options.exists("ipu_id"):
        raise Error(
            f"useIpuId({options.ipu_id}) chooses a device, an offline target (connectionType(Never), "
            "useOfflineIpuTarget()) has none. Use one of the two."
        )
    if offline and options._backend.counts_cycles:
        raise Error(
            "logCycleCount: the cycle counter is only supported on actual IPU hardware and on the IPU Model, and an "
            "offline target does not run. Leave it off: ipu_model.profile(executor) has the modelled cycles."
        )
    processes = options.Distributed.numProcesses
    if processes > 1 and options._backend.cache_folder is None:
        logger.warning(
            "%d processes and no executable cache: every process compiles the model. "
            "poptorch.Options().enableExecutableCaching(path) lets one compile for all.",
            processes,
        )
    log_options(options)
    validate_options(options.toDict())


def _simulator_asked_for(options: Options) -> bool:
    shown = {True: "Enabled", False: "Disabled"}
    if options.exists("use_model"):
        native_logger.info("From the user configuration: Ipu model: %s", shown[bool(options.use_model)])
        return bool(options.use_model)
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        text = os.environ.get(name)
        if not text:
            continue
        try:
            chosen = int(text) != 0
        except ValueError:
            raise Error(f"{name} must be an integer, not {text!r}. Use 1 or 0.") from None
        native_logger.info("From %s environment variable: Ipu model: %s", name, shown[chosen])
        if chosen:
            return True
    return False


def check_program(graph: Graph, options: Options, *, one_process: bool) -> None:
    """Refuse a traced program that the options, or a device, cannot run; with `one_process`, it runs all replicas."""
    step = step_of(graph)
    is_pipelined = runs_stages_at_once(options._execution_strategy) and len(ipus_in_use(step)) > 1
    if is_pipelined:
        _check_pipeline(graph, options)
    for op in step.ops:
        for tensor in op.reads if not op.is_backward else ():
            producer = step.producer(tensor)
            if producer is not None:
                _check_order(producer.placement, op.placement, is_pipelined=is_pipelined)
    _check_ipus(step, options, one_process=one_process)
    functions = (info_of(node).marks.function for node in graph.ops.nodes)
    joint = [function.label for function in functions if function is not None and function.joint]
    if joint and options.Distributed.numProcesses > 1:
        raise unsupported(f"{joint[0]}, which sees all replicas, with several processes", "Run all replicas in one.")
    _check_overlap(graph, options)
    _check_buffers(graph, options)
    if options.output_mode == OutputMode.EveryN:
        period, iterations = options.output_return_period, options.device_iterations
        if iterations % period:
            given = f"outputMode(EveryN, {period}) with deviceIterations({iterations})"
            raise Error(f"Return period must be a divisor of deviceIterations: {given}.")
        if is_pipelined:
            rule = "OutputMode.EveryN is not available when the model is pipelined over several IPUs."
            raise Error(f"{rule} Use OutputMode.All, or poptorch.ShardedExecution.")


def _check_pipeline(graph: Graph, options: Options) -> None:
    stages, training = forward_stages(graph.block_entries), graph.loss is not None
    needed = fewest_micro_batches(stages, training=training)
    name = "Training.gradientAccumulation" if training else "deviceIterations"
    count = options.Training.gradient_accumulation if training else options.device_iterations
    if count < needed:
        note = (
            f" Please note that a model with {stages} pipeline stages in PopTorch will have an additional "
            f"{stages - 1} stages when training."
        )
        raise Error(
            f"poptorch.Options().{name} must be greater than or equal to the number of pipeline stages ({needed}) when "
            f"using poptorch.PipelinedExecution.{note if training else ''} It is {count}; poptorch.ShardedExecution "
            "has no such minimum."
        )


def _check_order(earlier: Placement, place: Placement, *, is_pipelined: bool) -> None:
    if is_pipelined and earlier.stage > place.stage:
        raise Error(
            f"Block '{place.block}' is pipeline stage {place.stage} but uses a result of block '{earlier.block}', "
            f"stage {earlier.stage}: stages of a pipeline must not decrease along the data flow. Use "
            "poptorch.AutoStage.AutoIncrement, or list the blocks as separate stages and fix their IPUs with "
            "poptorch.Stage(...).ipu(n)."
        )
    if place.phase is not None and earlier.phase is not None and earlier.phase > place.phase:
        raise Error(
            f"Block '{place.block}' is in phase {place.phase} but uses a result of block '{earlier.block}', phase "
            f"{earlier.phase}, which runs later. List the blocks in the order in which the data flows; a part of the "
            "model that comes back needs a block and a phase of its own."
        )


def _check_ipus(step: Step, options: Options, *, one_process: bool) -> None:
    per_replica = step.ipus[-1] + 1
    total = per_replica * options.replication_factor
    limited = total if one_process else per_replica
    if limited > MAX_IPUS:
        raise Error(
            f"Too many IPUs requested ({limited}): {per_replica} for the model x {limited // per_replica} "
            f"replicas, at most {MAX_IPUS} for one process. Use fewer replicas, or several processes."
        )
    reserved = 1 << (total - 1).bit_length()
    if total == reserved:
        return
    if options.auto_round_num_ipus:
        text = "The model uses %d IPUs: %d are reserved, the next power of 2, and %d of them left idle."
        logger.warning(text, total, reserved, reserved - total)
    else:
        text = (
            "The model specifies %d IPUs. On hardware %d have to be reserved (a power of 2 or maximum of 64 per "
            "process), which fails unless poptorch.Options().autoRoundNumIPUs(True) is set."
        )
        logger.info(text, total, reserved)


def overlaps(graph: Graph) -> tuple[bool, bool]:
    """Return whether transfers of inputs, and whether those of outputs, may overlap with computation."""
    marks = [info_of(node).marks for node in graph.ops.nodes]
    both = {mark.overlap_input for mark in marks}, {mark.overlap_output for mark in marks}
    into, out = (bool(modes - {None, OverlapMode.NoOverlap.value}) for modes in both)
    return into, out


def _check_overlap(graph: Graph, options: Options) -> None:
    if not any(overlaps(graph)):
        return
    if not options.TensorLocations.exists("numIOTiles"):
        raise Error(
            "No IO tiles allocated: overlapped host transfers run on tiles of their own. Set them aside with "
            "poptorch.Options().TensorLocations.numIOTiles(32), an even number from 32 to 192."
        )
    if options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise Error(
            f"Unsupported output mode {OutputMode(options.output_mode).name} for overlapped host transfers. Use "
            "poptorch.Options().outputMode(poptorch.OutputMode.All), or OutputMode.Sum."
        )


def _check_buffers(graph: Graph, options: Options) -> None:
    shared = options.replication_factor > options.input_group_size and options.broadcast_buffers
    for variable in graph.variables:
        if shared and variable.is_buffer and variable.tensor in graph.assigned:
            raise Error(
                "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming "
                "out of sync between replicas, you can disable buffer broadcasting using "
                f"poptorch.Options.broadcastBuffers(False). (Buffer '{variable.name}' is changed in place, and the "
                f"model has {options.replication_factor} replicas.)"
            )
    known = sorted(name for variable in graph.variables if variable.is_buffer for name in variable.names)
    unknown = ", ".join(name for name in options._backend.updatable_buffers if name not in known)
    if unknown:
        missing = f"updatableNamedBuffers: the model has no floating-point buffer named {unknown}"
        raise Error(f"{missing}. It has: {', '.join(known) or 'none'}.")


def check_operators(graph: Graph, *, warns: bool) -> None:
    """Refuse ops without a handler in PopTorch, unless the user asks for a warning; only if it `warns` is it said."""
    wanted = os.environ.get(_UNSUPPORTED_OPS) or "error"
    if wanted not in ("error", "warn"):
        raise Error(f"{_UNSUPPORTED_OPS} must be 'error' (as in PopTorch) or 'warn', not {wanted!r}.")
    if graph.unsupported and wanted == "error":
        runs = f"With {_UNSUPPORTED_OPS}=warn in the environment, this machine runs the program all the same."
        raise Error(f"{refusal(graph.unsupported)}\n{runs}")
    if graph.unsupported and warns:
        logger.warning("%s\n%s is set, so this machine runs the program.", refusal(graph.unsupported), _UNSUPPORTED_OPS)


def warn_about_program(graph: Graph, module: nn.Module, options: Options) -> None:
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    if any(isinstance(output.value, Tensor) and id(output.value) not in own for output in graph.outputs):
        warnings.warn("Output expected to be on the IPU but is on cpu", stacklevel=2)
    returned = {output.spec.dtype for output in graph.outputs if output.spec is not None}
    for dtype in sorted(returned & RETURNED_DTYPE.keys(), key=str):
        text = "Outputs of type %s are returned as %s, in which large values lose their range."
        logger.warning(text, dtype, RETURNED_DTYPE[dtype])
    if graph.forgotten:
        logger.warning(
            "Integer and bool buffers are constants of the compiled program. What forward writes to %s is lost at the "
            "end of each micro-batch: use a floating-point buffer if it must last.",
            ", ".join(graph.forgotten),
        )
    # PopTorch stores the modes of anchors but ignores them.
    for short_name, (_, inherits, mode, period) in options.anchored_tensors.items():
        if not inherits and (mode, period) != (options.output_mode, options.output_return_period):
            logger.warning(
                "anchorTensor: the output mode of '%s' (%s) has no effect, as in PopTorch: the model's applies (%s). "
                "Set poptorch.Options().outputMode(...) instead.",
                short_name,
                OutputMode(mode).name,
                OutputMode(options.output_mode).name,
            )
