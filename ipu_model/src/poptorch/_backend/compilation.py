"""From a module, options and one set of arguments to a captured graph, with every rule checked on the way."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture import capture
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, TensorSpec
from ipu_model.capture.variables import DEVICE_DTYPE
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.results import RETURNED_DTYPE
from ipu_model.compute.rounding import Overflow
from ipu_model.step import ipus_in_use
from poptorch._args_parser import BoundArguments, check_inputs
from poptorch._backend.hooks import around_trace, run_before
from poptorch._backend.results import warn_about_modes, with_anchors
from poptorch._backend.rules import (
    check_buffers,
    check_ipus,
    check_named_buffers,
    check_overlap,
    check_phases,
    check_pipeline,
    check_returns,
    check_target,
    overlaps,
)
from poptorch._backend.tensor_names import log_ops, name_prints
from poptorch._impl import createPoptorchError
from poptorch._logging import logger
from poptorch._utils import flatten
from poptorch.enums import CommGroupType, OutputMode
from poptorch.ops.overlap import INPUT, OUTPUT, check_marks
from poptorch.options import Options
from poptorch.options.backend import validate_options
from poptorch.options.handover import TracedProgram, derived_settings, log_options

_HALF_OVERFLOW, _REPORTS_CLIPPING = "IPU_MODEL_HALF_OVERFLOW", "IPU_MODEL_REPORT_CLIPPING"


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
    """Return the arithmetic that `Options.Precision` and this package's own environment variables ask for.

    Raises:
        Error: a value that `IPU_MODEL_HALF_OVERFLOW` cannot have.
    """
    backend = options._backend
    return Arithmetic(
        half_partials=backend.half_matmuls or backend.half_convolutions,
        floating_point_exceptions=backend.floating_point_exceptions,
        overflow=_overflow(),
        reports_clipping=os.environ.get(_REPORTS_CLIPPING, "0") not in ("", "0"),
    )


def _overflow() -> Overflow:
    """Return how to treat half-precision results beyond the range: clip them, unless the user asks for infinities."""
    wanted = os.environ.get(_HALF_OVERFLOW) or Overflow.CLIP.value
    try:
        return Overflow(wanted)
    except ValueError:
        raise createPoptorchError(
            f"{_HALF_OVERFLOW} must be 'clip' (to +-65504, as IPUs most likely do) or 'infinity' (as GPUs do), "
            f"not {wanted!r}."
        ) from None


def check_options(options: Options) -> None:
    """Refuse options that contradict each other or that the backend does not know.

    Raises:
        Error: names the option and what works instead.
    """
    check_counts(batching_of(options))
    check_target(options)
    log_options(options)
    validate_options(options.toDict())


def trace(
    module: nn.Module,
    options: Options,
    arguments: BoundArguments,
    *,
    training: bool,
    one_process: bool = True,
    warns: bool = True,
) -> Graph:
    """Capture one micro-batch of `module`, check it against the options, and add the tensors that they anchor.

    `one_process` is true if this process runs all replicas in the options; `warns` is false for a module that was
    traced before, whose warnings are known.

    Raises:
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
        Error: everything else that PopTorch refuses when it compiles, unknown names of anchored tensors included.
    """
    graph = _captured(module, options, arguments, training=training)
    check_pipeline(graph, options, training=training)
    check_phases(graph)
    check_ipus(graph, options, one_process=one_process)
    check_overlap(graph, options)
    check_buffers(graph, options)
    check_named_buffers(graph, options)
    check_returns(graph, options)
    if warns:
        _warn_about_outputs(graph, module)
        _warn_about_forgotten(graph)
        if training:
            _warn_about_hooks(module)
    name_prints(graph, module_scopes=options._module_namescope_enabled)
    warn_about_modes(options)
    return with_anchors(graph, options)


def _captured(module: nn.Module, options: Options, arguments: BoundArguments, *, training: bool) -> Graph:
    """Trace one micro-batch, with the compile hooks around it."""
    tensors = arguments.tensors
    check_inputs(tensors)
    specs = micro_batch_specs(tensors, batching_of(options))
    strategy = options._execution_strategy

    def call(traced: nn.Module, fakes: list[Tensor]) -> Any:
        outputs = arguments.with_tensors(fakes).call(traced)
        check_marks(outputs)
        return outputs

    with around_trace():
        strategy.begin_trace()
        return capture(module, specs, call, flatten, training=training, placer=strategy, before_forward=run_before)


def log_derived(graph: Graph, options: Options, *, gradient_clipping: bool) -> None:
    """Write to the log which settings follow from the options and the traced program, and where its ops run."""
    overlapped = overlaps(graph, INPUT) or overlaps(graph, OUTPUT)
    program = TracedProgram(max(1, len(ipus_in_use(step_of(graph)))), gradient_clipping, overlapped)
    derived_settings(options, program)
    log_ops(graph, options)


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


def micro_batch_specs(tensors: Sequence[Tensor], batching: Batching) -> list[TensorSpec]:
    """Return the shape and type of one micro-batch of each tensor of a call.

    Raises:
        AssertionError: rows that do not divide into micro-batches.
    """
    return [_micro_batch(tensor, batching) for tensor in tensors]


def _micro_batch(tensor: Tensor, batching: Batching) -> TensorSpec:
    rows = tensor.shape[0] if tensor.dim() else 1
    assert rows % batching.slices == 0, (
        f"Invalid batch dimension: In the input {tensor.shape}, the batch dimension ({rows}) must be a "
        f"multiple of Options.deviceIterations({batching.device_iterations}) * "
        f"(Options.replicationFactor({batching.replicas}) / "
        f"Options.inputReplicaGrouping({batching.input_group})) * Options.Training.gradientAccumulation("
        f"{batching.accumulation}) = {batching.slices} because it is used to calculate the batch size which "
        "will be executed on the device in any given iteration. For a full explanation see the batching semantics "
        "page of the documentation. Nearest multiples: "
        f"{_nearest(rows, batching.slices)}."
    )
    shape = (rows // batching.slices, *tensor.shape[1:]) if tensor.dim() else ()
    return TensorSpec.contiguous(shape, DEVICE_DTYPE.get(tensor.dtype, tensor.dtype))


def _nearest(rows: int, factor: int) -> str:
    below = rows // factor * factor
    return f"{below} and {below + factor}" if below else str(factor)


def _warn_about_hooks(module: nn.Module) -> None:
    hooked = [
        name for name, parameter in module.named_parameters() if getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    if hooked:
        logger.warning(
            "Hooks that run after a gradient is accumulated are not run on the device: %s. Hooks of "
            "register_hook are.", ", ".join(hooked),
        )  # fmt: skip


def _warn_about_forgotten(graph: Graph) -> None:
    if graph.forgotten:
        logger.warning(
            "Integer and bool buffers are constants of the compiled program. What forward writes to %s is lost at the "
            "end of each micro-batch: use a floating-point buffer if it must last.", ", ".join(graph.forgotten),
        )  # fmt: skip


def _warn_about_outputs(graph: Graph, module: nn.Module) -> None:
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    values = [output.value for output in graph.outputs]
    if any(isinstance(value, Tensor) and id(value) not in own for value in values):
        warnings.warn("Output expected to be on the IPU but is on cpu", stacklevel=2)
    returned = {output.spec.dtype for output in graph.outputs if output.spec is not None}
    for dtype in sorted(returned & RETURNED_DTYPE.keys(), key=str):
        logger.warning(
            "Outputs of type %s are returned as %s, in which large values lose their range.",
            dtype,
            RETURNED_DTYPE[dtype],
        )
