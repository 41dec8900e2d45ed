"""The arithmetic of ops that PyTorch does not provide: Python functions of the program, and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.device_ops import recurrent_layers as layers
from ipu_model.capture.device_ops.python_ops import PythonFunction
from ipu_model.capture.device_ops.recurrent_layers import Kind
from ipu_model.capture.graph import TensorSpec
from ipu_model.compute.rounding import Overflow, nearest
from ipu_model.errors import Error


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


def choose_layer_kernels(graph: torch.fx.Graph, overflow: Overflow) -> None:
    """Give the recurrent layers of `graph` (before `to_containers`) the arithmetic of their element type.

    In float16 what a step stores is rounded, with this treatment of overflow. In float32 an LSTM without a projection
    runs as PyTorch's fused layer, where PyTorch itself would take that.
    """
    is_fused = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    in_half = _IN_HALF[overflow]
    for node in graph.nodes:
        if node.target in in_half:
            if _is_half(node.meta["spec"][0]):
                node.target = in_half[node.target]
            elif is_fused and node.target in _FUSED and node.args[_PROJECTION] is None:
                node.target = _FUSED[node.target]


def _is_half(spec: object) -> bool:
    return isinstance(spec, TensorSpec) and spec.dtype is torch.float16


def _in_half(compute: Callable[..., tuple[Tensor, ...]], kind: Kind, overflow: Overflow) -> Callable[..., Any]:
    """Return a kernel that rounds what each step stores to float16; sums over all steps are not rounded in it."""

    def layer_in_half(*args: Any) -> tuple[Tensor, ...]:
        return compute(kind, *args, stored=nearest(overflow))

    return layer_in_half


_Kernels: TypeAlias = dict[object, Callable[..., tuple[Tensor, ...]]]


def _kernels_in_half(overflow: Overflow) -> _Kernels:
    kinds = [(layers.LAYER_OPS[name], kind) for name, kind in layers.KINDS.items()]
    return {
        **{ops.forward: _in_half(layers.forward, kind, overflow) for ops, kind in kinds},
        **{ops.backward: _in_half(layers.backward, kind, overflow) for ops, kind in kinds},
    }


_IN_HALF = {overflow: _kernels_in_half(overflow) for overflow in Overflow}

_MKLDNN_LSTM = 2  # the mode of mkldnn_rnn_layer


def fused_lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None,
    w_p: None, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run a layer of an LSTM as PyTorch does on this CPU; what it keeps for backward is opaque."""
    zeros = w_x.new_zeros(len(w_x))
    biases = [zeros if bias is None else bias for bias in (b_x, b_h)]
    given = [t.contiguous() for t in (x, w_x, w_h, *biases, hidden, cell)]
    with torch.enable_grad():  # without it the layer keeps nothing for backward
        hiddens, _, last_cell, workspace = torch.ops.aten.mkldnn_rnn_layer(
            *given, reverse, [], _MKLDNN_LSTM, w_h.shape[1], 1, True, False, False, True
        )
    return hiddens, last_cell, workspace


def fused_lstm_backward(
    d_hiddens: Tensor | None, d_last_cell: Tensor | None, x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor,
    w_h: Tensor, w_p: None, hiddens: Tensor, last_cell: Tensor, workspace: Tensor, reverse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Differentiate a layer of an LSTM as PyTorch does on this CPU."""
    bias, empty = w_x.new_zeros(len(w_x)), x.new_empty(0)
    given = [t.contiguous() for t in (x, w_x, w_h, bias, bias, hidden, cell, hiddens)]
    d_hiddens = torch.zeros_like(hiddens) if d_hiddens is None else d_hiddens.contiguous()
    d_last_cell = torch.zeros_like(last_cell) if d_last_cell is None else d_last_cell.contiguous()
    d_x, d_w_x, d_w_h, d_bias, _, d_hidden, d_cell = torch.ops.aten.mkldnn_rnn_layer_backward(
        *given, hiddens[0 if reverse else -1], last_cell, d_hiddens, torch.zeros_like(last_cell), d_last_cell, reverse,
        _MKLDNN_LSTM, w_h.shape[1], 1, True, True, False, [], False, workspace,
    )  # fmt: skip
    asked = [found if want else empty for found, want in zip((d_x, d_hidden, d_cell), wanted)]
    return (*asked, d_w_x, d_w_h, d_bias, empty, empty)


_LSTM = layers.LAYER_OPS["lstm"]
_FUSED: _Kernels = {_LSTM.forward: fused_lstm, _LSTM.backward: fused_lstm_backward}
# Where both ops have their projection among their arguments.
_PROJECTION = 7
