"""Recurrent layers in half precision: what a time step leaves in memory is rounded before the next one reads it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture import recurrent
from ipu_model.graph import TensorSpec
from ipu_model.numerics.rounding import round_to_half_


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
    return recurrent.forward(x, hidden, cell, w_x, w_h, b_x, b_h, reverse, round_to_half_)


def lstm_backward(
    d_hiddens: Tensor | None, d_cells: Tensor | None, x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor,
    w_h: Tensor, hiddens: Tensor, cells: Tensor, gates: Tensor, reverse: bool, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Differentiate a layer of an LSTM; gradients of each step are float16 values, sums over steps are not."""
    states = (hiddens, cells, gates)
    return recurrent.backward(d_hiddens, d_cells, x, hidden, cell, w_x, w_h, *states, reverse, wanted, round_to_half_)


_REPLACEMENTS = {
    recurrent.LSTM: lstm,
    recurrent.LSTM_BACKWARD: lstm_backward,
}
