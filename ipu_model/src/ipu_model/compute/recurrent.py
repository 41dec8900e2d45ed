"""The arithmetic of recurrent layers in a replay: in half precision, or PyTorch's fused layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.device_ops import recurrent_layers as layers
from ipu_model.capture.device_ops.recurrent_layers import Kind
from ipu_model.capture.graph import info_of
from ipu_model.capture.torch_private import mkldnn_enabled
from ipu_model.compute.rounding import Overflow, nearest

_Kernel: TypeAlias = Callable[..., tuple[Tensor, ...]]


def choose_layer_kernels(graph: torch.fx.Graph, overflow: Overflow) -> None:
    """Give the recurrent layers of `graph` (before `to_containers`) the arithmetic of their element type."""
    is_fused = torch.backends.mkldnn.is_available() and mkldnn_enabled()
    in_half = _IN_HALF[overflow]
    for node in graph.nodes:
        if node.target in in_half:
            specs = info_of(node).spec
            if isinstance(specs, tuple) and specs[0] is not None and specs[0].dtype is torch.float16:
                node.target = in_half[node.target]
            elif is_fused and node.target in _FUSED and node.args[_PROJECTION] is None:
                node.target = _FUSED[node.target]


def _in_half(compute: Callable[..., tuple[Tensor, ...]], kind: Kind, overflow: Overflow) -> _Kernel:
    """Return a kernel that rounds what each step stores to float16; sums over all steps are not rounded in it."""

    def layer_in_half(*args: Any) -> tuple[Tensor, ...]:
        return compute(kind, *args, stored=nearest(overflow))

    return layer_in_half


_IN_HALF: dict[Overflow, dict[object, _Kernel]] = {
    overflow: {
        op: _in_half(compute, kind, overflow)
        for name, kind in layers.KINDS.items()
        for op, compute in zip(layers.LAYER_OPS[name], (layers.forward, layers.backward))
    }
    for overflow in Overflow
}

_MKLDNN_LSTM = 2  # the mode of mkldnn_rnn_layer


def fused_lstm(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of an LSTM as PyTorch does on this CPU; what it keeps for backward is opaque."""
    x, hidden, cell, w_x, w_h, b_x, b_h, _, reverse = arguments
    zeros = w_x.new_zeros(len(w_x))
    biases = [zeros if bias is None else bias for bias in (b_x, b_h)]
    given = [t.contiguous() for t in (x, w_x, w_h, *biases, hidden, cell)]
    with torch.enable_grad():  # without it the layer keeps nothing for backward
        hiddens, _, last_cell, workspace = torch.ops.aten.mkldnn_rnn_layer(
            *given, reverse, [], _MKLDNN_LSTM, w_h.shape[1], 1, True, False, False, True
        )
    return hiddens, last_cell, workspace


def fused_lstm_backward(*arguments: Any) -> tuple[Tensor, ...]:
    d_hiddens, d_last_cell, x, hidden, cell, w_x, w_h, _, hiddens, last_cell, workspace, reverse, wanted = arguments
    bias, empty = w_x.new_zeros(len(w_x)), x.new_empty(0)
    given = [t.contiguous() for t in (x, w_x, w_h, bias, bias, hidden, cell, hiddens)]
    d_hiddens = torch.zeros_like(hiddens) if d_hiddens is None else d_hiddens.contiguous()
    d_last_cell = torch.zeros_like(last_cell) if d_last_cell is None else d_last_cell.contiguous()
    last = (hiddens[0 if reverse else -1], last_cell, d_hiddens, torch.zeros_like(last_cell), d_last_cell)
    d_x, d_w_x, d_w_h, d_bias, _, d_hidden, d_cell = torch.ops.aten.mkldnn_rnn_layer_backward(
        *given, *last, reverse, _MKLDNN_LSTM, w_h.shape[1], 1, True, True, False, [], False, workspace
    )
    asked = [gradient if want else empty for gradient, want in zip((d_x, d_hidden, d_cell), wanted)]
    return (*asked, d_w_x, d_w_h, d_bias, empty, empty)


_LSTM = layers.LAYER_OPS["lstm"]
_FUSED: dict[object, _Kernel] = {_LSTM.forward: fused_lstm, _LSTM.backward: fused_lstm_backward}
# Where both ops have their projection among their arguments.
_PROJECTION = 7
