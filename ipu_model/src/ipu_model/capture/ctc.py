"""Connectionist temporal classification as one op of the graph: PyTorch's own cannot be traced without data.

The lengths may be constants or inputs of the model. Its two ops are `ipu_model::ctc_loss` and
`ipu_model::ctc_loss_backward`; the backward op repeats the forward recursion instead of keeping it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# What `torch.ctc_loss` takes instead of the words of `torch.nn.functional.ctc_loss`.
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int], blank: int = 0, reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Compute what `torch.nn.functional.ctc_loss` does, from ops of static shape.

    `log_probs` is `[T, N, C]` or `[T, C]`, `targets` `[N, S]` or all targets in one row, lengths `[N]`.
    """
    batched = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    lengths = [_lengths(value, batched) for value in (input_lengths, target_lengths)]
    losses: Tensor = torch.ops.ipu_model.ctc_loss(batched, targets, *lengths, blank, zero_infinity)
    reduction = _REDUCTIONS.get(reduction, "none") if isinstance(reduction, int) else reduction
    if reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if log_probs.dim() == 3 else losses.squeeze(0)


def _lengths(value: Tensor | Sequence[int], like: Tensor) -> Tensor:
    lengths = value if isinstance(value, Tensor) else torch.tensor(value, device=like.device)
    return lengths.reshape(-1)


@torch.library.custom_op("ipu_model::ctc_loss", mutates_args=())
def _forward(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    losses: Tensor
    losses, _ = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    return losses.masked_fill(losses == torch.inf, 0.0) if zero_infinity else losses.clone()


@torch.library.custom_op("ipu_model::ctc_loss_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    arguments = (log_probs, targets, input_lengths, target_lengths)
    losses, log_alpha = aten._ctc_loss.Tensor(*arguments, blank, zero_infinity)
    saved = (losses, log_alpha, blank, zero_infinity)
    result: Tensor = aten._ctc_loss_backward.Tensor(gradient.contiguous(), *arguments, *saved)
    return result


@_forward.register_fake
def _(log_probs: Tensor, *rest: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@_backward.register_fake
def _(gradient: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.ipu_model.ctc_loss_backward(gradient, *ctx.saved_tensors, *ctx.settings), *[None] * 5


_forward.register_autograd(_gradients, setup_context=_keep_arguments)
