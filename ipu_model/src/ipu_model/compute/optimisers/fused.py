"""The one place that knows PyTorch's fused optimiser kernels, which are private names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fits(weights: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Tell whether the fused kernels may run: they walk raw memory, so all is float32 of one layout."""
    return all(
        tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.stride() == weight.stride()
        for other in (weights, *others)
        for weight, tensor in zip(weights, other, strict=True)
    )


def grad_scale(factor: float) -> Tensor | None:
    """Return what the kernels divide gradients by so as to multiply them by `factor` (finite, not zero)."""
    return None if factor == 1.0 else torch.tensor(1.0 / factor)


def sgd_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    divisor: Tensor | None,
) -> None:
    """Update in place: `v <- momentum*v + (1-dampening)*(g + weight_decay*w)`, `w <- w - lr*v`.

    `momentum` is not 0, else the kernel leaves `velocities` alone.
    """
    torch._fused_sgd_(
        list(weights),
        list(gradients),
        list(velocities),
        lr=lr,
        momentum=momentum,
        dampening=dampening,
        weight_decay=weight_decay,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
        grad_scale=divisor,
    )


def adam_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    divisor: Tensor | None,
) -> None:
    """Update in place as Adam, or AdamW if `decoupled`; `steps` are the counters, already increased."""
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        list(weights),
        list(gradients),
        list(firsts),
        list(seconds),
        [],
        list(steps),
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
        grad_scale=divisor,
    )
