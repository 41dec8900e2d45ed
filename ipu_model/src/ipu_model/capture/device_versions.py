"""Functions of torch for which the device runs another version: their own needs values, formats or types it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ipu_model.capture.ctc import ctc_loss
from ipu_model.capture.recurrent import lstm
from ipu_model.capture.unchecked import gaussian_nll_loss


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
    F.ctc_loss: ctc_loss, torch.ctc_loss: ctc_loss, F.gaussian_nll_loss: gaussian_nll_loss, torch.lstm: lstm,
    F.embedding: embedding, F.embedding_bag: embedding_bag,
    F.multi_margin_loss: _in_single(F.multi_margin_loss),
    F.multilabel_margin_loss: _in_single(F.multilabel_margin_loss),
}  # fmt: skip
