"""What the options ask for, in the engine's own terms, and copies of options for one executor."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.graph import Graph, TensorSpec
from ipu_model.capture.variables import DEVICE_DTYPE
from ipu_model.compute.gradients import LossScalingSettings
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.rounding import Overflow
from ipu_model.errors import Error
from poptorch._logging import logger
from poptorch.enums import CommGroupType, OutputMode, ReductionType
from poptorch.options import Options
from poptorch.options.backend import LOSS_SCALING
from poptorch.options.strategies import runs_stages_at_once

_HALF_OVERFLOW, _REPORTS_CLIPPING = "IPU_MODEL_HALF_OVERFLOW", "IPU_MODEL_REPORT_CLIPPING"
_INDIVISIBLE = (
    "Invalid batch dimension: In the input {shape}, the batch dimension ({rows}) must be a multiple of "
    "Options.deviceIterations({batching.device_iterations}) * (Options.replicationFactor({batching.replicas}) / "
    "Options.inputReplicaGrouping({batching.input_group})) * "
    "Options.Training.gradientAccumulation({batching.accumulation}) = {batching.slices} because it is used to "
    "calculate the batch size which will be executed on the device in any given iteration. For a full explanation "
    "see the batching semantics page of the documentation. Nearest multiples: {nearest}."
)
_KEPT = {
    OutputMode.All: Keep.ALL,
    OutputMode.Final: Keep.FINAL,
    OutputMode.Sum: Keep.SUM,
    OutputMode.EveryN: Keep.EVERY_N,
}


def own_options(options: Options | None, training: bool) -> Options:
    """Return a frozen copy of `options` with the output mode resolved; `options` itself does not change."""
    own: Options = options.clone() if options is not None else Options()
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
    """Return the batch arithmetic that the options ask for.

    Raises `Error`: a count below one; PopTorch stores such values and fails when it compiles.
    """
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
    return Returns(_KEPT[OutputMode(options.output_mode)], options.output_return_period)


def micro_batch_specs(tensors: Sequence[Tensor], batching: Batching) -> list[TensorSpec]:
    """Return the shape and type of one micro-batch of each tensor of a call."""
    specs = []
    for tensor in tensors:
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % batching.slices:
            below = rows // batching.slices * batching.slices
            nearest = f"{below} and {below + batching.slices}" if below else str(batching.slices)
            raise AssertionError(_INDIVISIBLE.format(shape=tensor.shape, rows=rows, batching=batching, nearest=nearest))
        shape = (rows // batching.slices, *tensor.shape[1:]) if tensor.dim() else ()
        specs.append(TensorSpec.contiguous(shape, DEVICE_DTYPE.get(tensor.dtype, tensor.dtype)))
    return specs


def arithmetic_of(options: Options) -> Arithmetic:
    """Return the arithmetic that `Options.Precision` and this package's own environment variables ask for.

    Half-precision results beyond the range are clipped, unless the user asks for infinities.
    """
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
    """Return how the loss scaling of a training program adapts, or `None` if it does not."""
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
