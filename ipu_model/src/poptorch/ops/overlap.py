"""Overlapped host transfers: `set_overlap_for_input` and `set_overlap_for_output`.

Only `OverlapMode.NoOverlap` is available in this version; the others are refused while a model is traced,
after the rules of PopTorch that can be checked at that moment. On the CPU every mode does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from ipu_model import tracing
from ipu_model.errors import unsupported
from poptorch._errors import createPoptorchError
from poptorch._structure import tensor_leaves
from poptorch.enums import OverlapMode
from poptorch.strategies import PipelinedExecution, ShardedExecution

if TYPE_CHECKING:
    from ipu_model.capture.trace import Trace

T = TypeVar("T")


def set_overlap_for_input(input_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model inputs to overlap the computation; return `input_tensors` unchanged.

    `input_tensors` is a tensor or any nesting of tuples, lists and dicts; leaves that are no tensors pass
    through.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: when traced, a tensor that is not a model input or was used before, a pipelined strategy, or
            any mode but `NoOverlap`.
    """
    trace = _checked_mode("input", mode)
    if trace is not None:
        for tensor in tensor_leaves(input_tensors):
            _check_input(trace, tensor)
        _refuse_overlap(trace, "poptorch.set_overlap_for_input", mode)
    return input_tensors


def set_overlap_for_output(output_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model outputs to overlap the computation; return `output_tensors` unchanged.

    `output_tensors` is a tensor or any nesting of tuples, lists and dicts; leaves that are no tensors pass
    through.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: when traced, a pipelined strategy, or any mode but `NoOverlap`.
    """
    trace = _checked_mode("output", mode)
    if trace is not None:
        _refuse_overlap(trace, "poptorch.set_overlap_for_output", mode)
    return output_tensors


def _checked_mode(kind: str, mode: OverlapMode) -> Trace | None:
    assert isinstance(mode, OverlapMode), f"set_overlap_for_{kind} takes a poptorch.OverlapMode as mode; got {mode!r}."
    return tracing.current()


def _check_input(trace: Trace, tensor: Tensor) -> None:
    node = trace.node_of(tensor)
    if node is None or node.op != "placeholder" or not node.name.startswith("input_"):
        raise createPoptorchError(
            "poptorch.set_overlap_for_input applied on a node which is not a tensor input to the model. "
            "Apply it to the arguments of forward, before anything else."
        )
    if node.users:
        raise createPoptorchError(
            "poptorch.set_overlap_for_input must be the only op applied to an input; "
            f"{next(iter(node.users))} uses it already. Apply it first and use what it returns everywhere."
        )


def _refuse_overlap(trace: Trace, name: str, mode: OverlapMode) -> None:
    if mode is OverlapMode.NoOverlap:
        return
    strategy = trace.placer
    if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
        raise createPoptorchError(
            f"{name}: overlapping host I/O is not supported with poptorch.PipelinedExecution. If you are "
            "only using a single IPU, please switch to poptorch.ShardedExecution."
        )
    raise unsupported(f"{name} with {mode}", "Use poptorch.OverlapMode.NoOverlap, which returns the same values.")
