"""From a module, options and one set of arguments to a captured graph, with every rule checked on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model import errors
from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture import capture
from ipu_model.capture.variables import DEVICE_DTYPE
from ipu_model.graph import Graph, TensorSpec
from ipu_model.numerics.replay import Arithmetic
from ipu_model.pipeline import forward_stages, training_stages
from poptorch._binding import BoundArguments, check_inputs
from poptorch._errors import createPoptorchError
from poptorch._structure import flatten
from poptorch.enums import CommGroupType, OutputMode
from poptorch.options import Options
from poptorch.strategies import PipelinedExecution, ShardedExecution

_logger = logging.getLogger("poptorch::python")

MAX_IPUS = 64


def batching_of(options: Options) -> Batching:
    """Return the batch arithmetic that the options ask for."""
    return Batching(
        device_iterations=options.device_iterations,
        accumulation=options.Training.gradient_accumulation,
        replicas=options.replication_factor,
        input_group=options.input_group_size,
        orthogonal_groups=options.input_cgt == CommGroupType.Orthogonal,
    )


def returns_of(options: Options) -> Returns:
    """Return which results the (resolved) output mode keeps."""
    keep = {
        OutputMode.All: Keep.ALL, OutputMode.Final: Keep.FINAL, OutputMode.Sum: Keep.SUM,
        OutputMode.EveryN: Keep.EVERY_N,
    }[OutputMode(options.output_mode)]  # fmt: skip
    return Returns(keep, options.output_return_period)


def arithmetic_of(options: Options) -> Arithmetic:
    """Return what `Options.Precision` asks of the numerics."""
    popart = options._Popart.options
    convolutions = popart.get("convolutionOptions", {})
    return Arithmetic(
        half_partials="half" in (popart.get("partialsTypeMatMuls"), convolutions.get("partialsType")),
        floating_point_exceptions=bool(popart.get("enableFloatingPointChecks", False)),
    )


def trace(
    module: nn.Module, options: Options, arguments: BoundArguments, *, training: bool, before: Callable[[], None]
) -> Graph:
    """Capture one micro-batch of `module` and check it against the options.

    Raises:
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
        Error: everything else that PopTorch refuses when it compiles.
    """
    batching = batching_of(options)
    check_counts(batching)
    tensors = arguments.tensors
    check_inputs(tensors)
    specs = [_micro_batch(tensor, batching) for tensor in tensors]
    strategy = options._execution_strategy

    def call(traced: nn.Module, fakes: list[Tensor]) -> Any:
        return arguments.with_tensors(fakes).call(traced)

    strategy.begin_trace()
    graph = capture(module, specs, call, flatten, training=training, placer=strategy, before_forward=before)
    _check_pipeline(graph, options, training)
    _check_ipus(graph, options)
    _check_buffers(graph, options)
    _check_returns(graph, options)
    _warn_about_outputs(graph)
    return graph


def check_counts(batching: Batching) -> None:
    """Refuse counts below one.

    Raises:
        Error: names the option; PopTorch stores such values and fails when it compiles.
    """
    for name, value in (
        ("deviceIterations", batching.device_iterations),
        ("Training.gradientAccumulation", batching.accumulation),
        ("replicationFactor", batching.replicas),
    ):
        if value < 1:
            raise createPoptorchError(f"poptorch.Options().{name} must be at least 1, not {value}.")


def _micro_batch(tensor: Tensor, batching: Batching) -> TensorSpec:
    rows = tensor.shape[0] if tensor.dim() else 1
    assert rows % batching.slices == 0, (
        f"Invalid batch dimension: In the input {list(tensor.shape)}, the batch dimension ({rows}) must be a multiple "
        f"of Options.deviceIterations({batching.device_iterations}) * (Options.replicationFactor({batching.replicas}) "
        f"/ Options.inputReplicaGrouping({batching.input_group})) * Options.Training.gradientAccumulation("
        f"{batching.accumulation}) = {batching.slices} because it is used to calculate the batch size which will be "
        f"executed on the device in any given iteration. Nearest multiples: {_nearest(rows, batching.slices)}."
    )
    shape = (rows // batching.slices, *tensor.shape[1:]) if tensor.dim() else ()
    return TensorSpec.contiguous(shape, DEVICE_DTYPE.get(tensor.dtype, tensor.dtype))


def _nearest(rows: int, factor: int) -> str:
    below = rows // factor * factor
    return f"{below} and {below + factor}" if below else str(factor)


def _check_pipeline(graph: Graph, options: Options, training: bool) -> None:
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)
    if not pipelined or len(graph.ipus) < 2:
        return
    stages = forward_stages(graph.block_entries)
    _check_order(graph)
    if not training and options.device_iterations < stages:
        raise createPoptorchError(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
            f"({stages}) when using poptorch.PipelinedExecution. It is {options.device_iterations}."
        )
    needed = training_stages(stages)
    accumulation = options.Training.gradient_accumulation
    if training and accumulation < needed:
        raise createPoptorchError(
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of pipeline "
            f"stages ({needed}) when using poptorch.PipelinedExecution. Please note that a model with {stages} pipeline "
            f"stages in PopTorch will have an additional {stages - 1} stages when training. It is {accumulation}; "
            "poptorch.ShardedExecution has no such minimum."
        )


def _check_order(graph: Graph) -> None:
    """Stage numbers must not go down along the pipeline."""
    reached = 0
    for entry in graph.block_entries:
        if entry.stage < reached:
            raise createPoptorchError(
                f"Block '{entry.block}' returns to pipeline stage {entry.stage} after stage {reached}: stages of a "
                "pipeline must not decrease along the data flow. Use poptorch.AutoStage.AutoIncrement, or list the "
                "blocks as separate stages and fix their IPUs with poptorch.Stage(...).ipu(n)."
            )
        reached = entry.stage


def _check_ipus(graph: Graph, options: Options) -> None:
    per_replica = max(len(graph.ipus), graph.ipus[-1] + 1)
    total = per_replica * options.replication_factor
    if total > MAX_IPUS:
        raise createPoptorchError(
            f"Too many IPUs requested ({total}): {per_replica} for the model x {options.replication_factor} replicas, "
            f"at most {MAX_IPUS} for one process. Use fewer replicas, or several processes."
        )
    if total & (total - 1) and not options.auto_round_num_ipus:
        rounded = 1 << total.bit_length()
        _logger.info(
            "The model specifies %d IPUs. On hardware %d have to be reserved (a power of 2 or maximum of 64 per "
            "process), which fails unless poptorch.Options().autoRoundNumIPUs(True) is set.", total, rounded,
        )  # fmt: skip


def _check_buffers(graph: Graph, options: Options) -> None:
    if options.replication_factor <= options.input_group_size or not options.broadcast_buffers:
        return
    for variable in graph.variables:
        if variable.is_buffer and variable.node in graph.assigned:
            raise createPoptorchError(
                f"PopTorch does not support broadcasting buffers: '{variable.name}' is changed in place and the model "
                f"has {options.replication_factor} replicas. Set poptorch.Options().broadcastBuffers(False) to let each "
                "replica keep its own."
            )


def _check_returns(graph: Graph, options: Options) -> None:
    if options.output_mode != OutputMode.EveryN:
        return
    period, iterations = options.output_return_period, options.device_iterations
    if period > iterations or iterations % period:
        raise createPoptorchError(
            f"Return period must be a divisor of deviceIterations: outputMode(EveryN, {period}) with "
            f"deviceIterations({iterations})."
        )
    if len(graph.ipus) > 1 and not isinstance(options._execution_strategy, ShardedExecution):
        raise createPoptorchError(
            "OutputMode.EveryN is not available when the model is pipelined over several IPUs. Use OutputMode.All, "
            "or poptorch.ShardedExecution."
        )


_NARROWED = (torch.int64, torch.float64)


def _warn_about_outputs(graph: Graph) -> None:
    for output in graph.outputs:
        if isinstance(output.value, Tensor):
            import warnings

            warnings.warn("Output expected to be on the IPU but is on cpu", stacklevel=2)


def refuse_missing(options: Options, training: bool) -> None:
    """Refuse options that this version does not carry out.

    Raises:
        Error: names the feature and the nearest thing that works.
    """
    if not isinstance(options._execution_strategy, PipelinedExecution):
        raise errors.unsupported("Phased execution", "Use poptorch.PipelinedExecution or poptorch.ShardedExecution.")
    if options.anchored_tensors:
        raise errors.unsupported("Options.anchorTensor", "Return the tensor from forward instead.")
    if options._Popart.options.get("automaticLossScalingSettings.enabled"):
        raise errors.unsupported(
            "Training.setAutomaticLossScaling", "Set the optimiser's loss_scaling and change it with setOptimizer."
        )
    if training and options.Distributed.numProcesses > 1:
        raise errors.unsupported(
            "Training over several processes", "Use replicationFactor, which runs replicas in this process."
        )
