"""Functions of torch that read values only to refuse bad ones, without the look: a trace knows no values."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
