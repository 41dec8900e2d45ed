"""Ops whose arithmetic is a Python function, a mark of the op that replays call: CPU ops, custom ops and gradients."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from ipu_model.capture.graph import PythonFunction, TensorSpec, mark
from ipu_model.capture.tracing import Trace
from ipu_model.errors import Error

HOST_CALL, CUSTOM, CUSTOM_GRADIENT = "host_call", "custom_op", "custom_op_backward"


def record(
    kind: str, trace: Trace, tensors: Sequence[Tensor], results: Sequence[TensorSpec], function: PythonFunction
) -> list[Tensor]:
    """Add an op of `kind` to the trace, which has at least one result, and return its results."""
    described = json.dumps([[str(spec.dtype).removeprefix("torch."), list(spec.shape)] for spec in results])
    made: list[Tensor] = getattr(torch.ops.ipu_model, kind)(list(tensors), described)
    item = trace.node_of(made[0])
    assert item is not None, "the op was made outside the trace"
    (op,) = item.all_input_nodes
    mark(op, function=function)
    return made


def _without_function(tensors: list[Tensor], results: str) -> list[Tensor]:
    raise Error(
        "A CPU op or custom op has no Python function here. Either all its operands are tensors that forward made on "
        "the host, for instance with torch.from_numpy: make one with torch.tensor(...), or pass it as an input. Or the "
        "program comes from a file, which keeps the op without its function: compile the model itself."
    )


def _empty(tensors: list[Tensor], results: str) -> list[Tensor]:
    return [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in json.loads(results)]


for _kind in (HOST_CALL, CUSTOM, CUSTOM_GRADIENT):
    # What the function draws at random comes from the streams of the replicas, and no result is known when compiling.
    _op = torch.library.custom_op(
        f"ipu_model::{_kind}", _without_function, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
    )
    _op.register_fake(_empty)
