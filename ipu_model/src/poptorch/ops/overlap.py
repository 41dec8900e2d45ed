"""Overlapped host transfers: `set_overlap_for_input` and `set_overlap_for_output`.

While a model is traced the mode is noted on the input or on the op that computes the output, for the performance
model; no value depends on it. On the CPU every mode does nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar, cast

import torch

from ipu_model.capture import tracing
from ipu_model.capture.tracing import Trace
from ipu_model.errors import require
from poptorch._impl import createPoptorchError
from poptorch._utils import flattenTensorStructure, reconstructTensorStructure
from poptorch.enums import OverlapMode
from poptorch.options.strategies import runs_stages_at_once

T = TypeVar("T")

INPUT, OUTPUT = "overlap_input", "overlap_output"


def set_overlap_for_input(input_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model inputs to overlap the computation; return `input_tensors` unchanged.

    `input_tensors` is a tensor or any nesting of tuples, lists and dicts; leaves that are no tensors pass through.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: when traced, a tensor that is not a model input or has other uses, or a pipelined strategy;
            when compiled, no I/O tiles or another output mode than `All` and `Sum`.
    """
    trace = _checked_mode("input", mode)
    if trace is None:
        return input_tensors
    inputs = flattenTensorStructure(input_tensors)
    for tensor in inputs:
        node = trace.node_of(tensor)
        if node is None or node.op != "placeholder" or not node.name.startswith("input_"):
            raise createPoptorchError(
                "poptorch.set_overlap_for_input applied on a node which is not a tensor input to the model. "
                "Apply it to the arguments of forward, before anything else."
            )
        if node.users:
            raise _other_use(next(iter(node.users)).name)
    _check_strategy(trace, "poptorch.set_overlap_for_input", mode)
    # An op of its own tells later uses of what is returned from uses of the input itself; it is dropped afterwards.
    marked = [torch.ops.aten.alias.default(tensor) for tensor in inputs]
    for tensor in marked:
        trace.hint(tensor, overlap_input=mode.value)
    return cast(T, reconstructTensorStructure(input_tensors, marked))


def set_overlap_for_output(output_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model outputs to overlap the computation; return `output_tensors` unchanged.

    `output_tensors` is a tensor or any nesting of tuples, lists and dicts; leaves that are no tensors pass through.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: when traced, a tensor that forward does not return, or returns twice, or a pipelined strategy;
            when compiled, no I/O tiles or another output mode than `All` and `Sum`.
    """
    trace = _checked_mode("output", mode)
    if trace is not None:
        for tensor in flattenTensorStructure(output_tensors):
            if trace.node_of(tensor) is None:
                raise _no_output()
            trace.hint(tensor, overlap_output=mode.value)
        _check_strategy(trace, "poptorch.set_overlap_for_output", mode)
    return output_tensors


def check_marks(outputs: Any) -> None:
    """Refuse marks on inputs that are used elsewhere, and on tensors not returned once; call it as forward ends.

    Raises:
        Error: names the rule.
    """
    trace = tracing.current()
    if trace is None:
        raise AssertionError("forward is not being traced")
    returned = Counter(trace.node_of(tensor) for tensor in flattenTensorStructure(outputs))
    for mark in trace.marked(lambda marks: marks.overlap_input is not None):
        (source,) = mark.all_input_nodes
        others = [node.name for node in source.users if node is not mark]
        if others or returned[source]:
            raise _other_use(others[0] if others else "the output of forward")
    for node in trace.marked(lambda marks: marks.overlap_output is not None):
        if not returned[node]:
            raise _no_output()
        if returned[node] > 1:
            raise createPoptorchError(
                "poptorch.set_overlap_for_output: the tensor is returned twice. Return it once, or return a copy of it "
                "(poptorch.nop(tensor)) in the other place."
            )


def _checked_mode(kind: str, mode: OverlapMode) -> Trace | None:
    is_mode = isinstance(mode, OverlapMode)
    require(is_mode, f"set_overlap_for_{kind} takes a poptorch.OverlapMode as mode; got {mode!r}.")
    return tracing.current()


def _other_use(user: str) -> Exception:
    return createPoptorchError(
        f"poptorch.set_overlap_for_input must be the only op applied to an input; {user} uses it too. Apply it first "
        "and use what it returns everywhere."
    )


def _check_strategy(trace: Trace, name: str, mode: OverlapMode) -> None:
    if mode is not OverlapMode.NoOverlap and runs_stages_at_once(trace.placer):
        raise createPoptorchError(
            f"{name}: overlapping host I/O is not supported with poptorch.PipelinedExecution. If you are "
            "only using a single IPU, please switch to poptorch.ShardedExecution."
        )


def _no_output() -> Exception:
    return createPoptorchError(
        "poptorch.set_overlap_for_output applied on a node which is not a tensor output to the model. Apply it to what "
        "forward returns, after everything else."
    )
