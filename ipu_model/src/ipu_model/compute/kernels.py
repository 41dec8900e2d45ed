"""The arithmetic of ops that PyTorch does not provide: Python functions of the program, and fp16 LSTM layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.device_ops import lstm as lstm_layer
from ipu_model.capture.device_ops.python_ops import PythonFunction
from ipu_model.compute.rounding import round_to_half_
from ipu_model.errors import Error
from ipu_model.graph import TensorSpec


def call_python_functions(graph: torch.fx.Graph) -> None:
    """Let every op of `graph` with the hint ``function`` call it; call it after every pass that looks at ops."""
    for node in graph.nodes:
        function = node.meta.get("hints", {}).get("function")
        if isinstance(function, PythonFunction):
            node.target = _caller(function, node.meta["spec"])


def _caller(function: PythonFunction, specs: tuple[TensorSpec, ...]) -> Callable[[list[Tensor], str], list[Tensor]]:
    """Return a callable for the op: it passes dense copies to the function, with half precision as fp32."""

    def call_python(tensors: list[Tensor], results: str) -> list[Tensor]:
        operands = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
        return checked(function.label, function.call(operands), specs)

    return call_python


def checked(label: str, results: object, specs: tuple[TensorSpec, ...]) -> list[Tensor]:
    """Return a function's results as new tensors of the element types in `specs`, with half precision as fp32.

    Raises:
        Error: the results are not tensors, or differ from `specs` in number, shape or type.
    """
    listed = [results] if isinstance(results, Tensor) else results
    if not isinstance(listed, (list, tuple)) or not all(isinstance(result, Tensor) for result in listed):
        raise Error(f"{label} must return a tensor or a list of tensors; it returned {type(results)}.")
    if len(listed) != len(specs):
        raise Error(f"{label} must return {len(specs)} tensors; it returned {len(listed)}.")
    for index, (result, spec) in enumerate(zip(listed, specs)):
        same_kind = result.dtype.is_floating_point == spec.dtype.is_floating_point
        if tuple(result.shape) != spec.shape or not same_kind:
            raise Error(
                f"{label} must return {spec.dtype} {list(spec.shape)} as its result {index}; it returned "
                f"{result.dtype} {list(result.shape)}. Shapes and types are fixed when the model is compiled."
            )
    containers = [torch.float32 if spec.dtype is torch.float16 else spec.dtype for spec in specs]
    dense = torch.contiguous_format
    return [r.detach().to(dtype, copy=True, memory_format=dense) for r, dtype in zip(listed, containers)]


def store_states_in_half(graph: torch.fx.Graph) -> None:
    """Replace the fp16 recurrent layers of `graph` (before `to_containers`) by their versions in containers."""
    for node in graph.nodes:
        replacement = _REPLACEMENTS.get(node.target)
        if replacement is not None and _is_half(node.meta["spec"][0]):
            node.target = replacement


def _is_half(spec: object) -> bool:
    return isinstance(spec, TensorSpec) and spec.dtype is torch.float16


def lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run a layer of an LSTM; gates and states of each step are float16 values."""
    return lstm_layer.forward(x, hidden, cell, w_x, w_h, b_x, b_h, reverse, round_to_half_)


def lstm_backward(
    d_hiddens: Tensor | None, d_cells: Tensor | None, x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor,
    w_h: Tensor, hiddens: Tensor, cells: Tensor, gates: Tensor, reverse: bool, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Differentiate a layer of an LSTM; gradients of each step are float16 values, sums over steps are not."""
    states = (hiddens, cells, gates)
    return lstm_layer.backward(d_hiddens, d_cells, x, hidden, cell, w_x, w_h, *states, reverse, wanted, round_to_half_)


_REPLACEMENTS = {
    lstm_layer.LSTM: lstm,
    lstm_layer.LSTM_BACKWARD: lstm_backward,
}
