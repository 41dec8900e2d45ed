"""Functions of torch for which the device runs another version: their own needs values, formats or types it has not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.ctc import ctc_loss
from ipu_model.capture.device_ops.recurrent_layers import recurrent_network
from ipu_model.capture.torch_private import AdaptiveSoftmaxOutput

_Module = nn.AdaptiveLogSoftmaxWithLoss


@contextmanager
def static_adaptive_softmax() -> Iterator[None]:
    """Let `torch.nn.AdaptiveLogSoftmaxWithLoss` compute every cluster for every row while a model is traced.

    Results are the same; the device does the work of `log_prob` for all classes, as shapes must be known.
    """
    before = _Module.forward, _Module.predict
    _Module.forward = _while_tracing(_forward, _Module.forward)  # type: ignore[method-assign]
    _Module.predict = _while_tracing(_predict, _Module.predict)  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Module.forward, _Module.predict = before  # type: ignore[method-assign]


def _while_tracing(static: Callable[..., Any], dynamic: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(self: nn.AdaptiveLogSoftmaxWithLoss, *args: Any, **kwargs: Any) -> Any:
        return (dynamic if tracing.current() is None else static)(self, *args, **kwargs)

    return chosen


def _forward(self: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    single = target_.dim() == 0
    if single:
        input_, target_ = input_.unsqueeze(0), target_.unsqueeze(0)
    output = self.log_prob(input_).gather(1, target_.long().unsqueeze(1)).squeeze(1)
    loss = (-output).mean()
    return AdaptiveSoftmaxOutput(output.squeeze(0) if single else output, loss)


def _predict(self: nn.AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    return torch.argmax(self.log_prob(input), dim=1)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Compute what `torch.nn.functional.gaussian_nll_loss` does; a negative variance is not refused.

    `var` is a number, or a tensor of `input`'s shape, of that shape without its last dimension, or with 1
    there. No gradient knows of the lower limit `eps`.
    """
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    elif var.dim() == input.dim() - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    limited = var.clone()
    with torch.no_grad():
        limited.clamp_(min=eps)
    losses = 0.5 * (limited.log() + (input - target) ** 2 / limited)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return losses.mean()
    return losses.sum() if reduction == "sum" else losses


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Compute `torch.nn.functional.embedding` with a dense gradient: the device has no sparse tensors."""
    return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, *more: Any, **named: Any,
) -> Tensor:  # fmt: skip
    """Compute `torch.nn.functional.embedding_bag` with a dense gradient."""
    return F.embedding_bag(input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, False, *more, **named)


def _in_single(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss that has no half-precision arithmetic of its own, computed in float32 and rounded at its end."""

    def computed(input: Tensor, *others: Any, **named: Any) -> Tensor:
        if input.dtype is not torch.float16:
            return loss(input, *others, **named)
        arguments = (input, *others), named
        (first, *rest), options = tree_map_only(Tensor, _single, arguments)
        return loss(first, *rest, **options).half()

    return computed


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


DEVICE_VERSIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.ctc_loss: ctc_loss, torch.ctc_loss: ctc_loss, F.gaussian_nll_loss: gaussian_nll_loss,
    torch.lstm: recurrent_network("lstm", torch.lstm), torch.gru: recurrent_network("gru", torch.gru),
    torch.rnn_tanh: recurrent_network("rnn_tanh", torch.rnn_tanh),
    torch.rnn_relu: recurrent_network("rnn_relu", torch.rnn_relu),
    F.embedding: embedding, F.embedding_bag: embedding_bag,
    F.multi_margin_loss: _in_single(F.multi_margin_loss),
    F.multilabel_margin_loss: _in_single(F.multilabel_margin_loss),
}  # fmt: skip
