"""PopTorch's versions of PyTorch's own optimisers: `SGD`, `Adam`, `AdamW` and `RMSprop`.

Arguments that are not passed are compiled in as constants. All raise AssertionError for non-numbers and for accumulator
types other than float32 and float16, ValueError as PyTorch does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch._logging import logger
from poptorch.optim.optimizer import Optimizer, checked_dtypes, given, moment_dtypes, require_numbers


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum, weight decay, dampening and Nesterov momentum.

        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, loss_scaling=1024.0)

    With `use_combined_accum` one tensor serves as gradient accumulator and velocity, stored multiplied by
    `velocity_scaling`; otherwise they are two tensors of `accum_type` and `velocity_accum_type`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        fused: bool | None = None,
    ) -> None:
        numbers = given(momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        require_numbers({"lr": lr, **numbers, **given(velocity_scaling=velocity_scaling, max_grad_norm=max_grad_norm)})
        dtypes = checked_dtypes(accum_type=accum_type, velocity_accum_type=velocity_accum_type)
        flags = given(foreach=foreach, maximize=maximize, differentiable=differentiable, fused=fused)
        torch.optim.SGD.__init__(self, params, lr, **numbers, **flags)
        combined = bool(use_combined_accum)
        if combined:
            # A hyper-parameter that PyTorch's class does not know.
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            logger.warning("velocity_scaling is ignored: it is the loss scaling unless use_combined_accum=True.")
        self._set_options(
            {"lr", *numbers, *given(velocity_scaling=velocity_scaling)},
            loss_scaling,
            **dtypes,
            use_combined_accum=combined,
            max_grad_norm=_limit(max_grad_norm),
        )


class Adam(Optimizer, torch.optim.Adam):
    """Adam, with weight decay added to the gradient; `amsgrad` must stay False."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        numbers = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        require_numbers({**numbers, **given(max_grad_norm=max_grad_norm)})
        dtypes = moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = given(
            foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
        )
        torch.optim.Adam.__init__(self, params, **_with_float_betas(numbers), **flags)
        self._set_options(numbers, loss_scaling, **dtypes, max_grad_norm=_limit(max_grad_norm))


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay; `amsgrad` must stay False.

    `bias_correction=False` has no numerical effect in this release: the device corrects the bias all the same.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        numbers = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        require_numbers({**numbers, **given(max_grad_norm=max_grad_norm)})
        dtypes = moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = given(
            foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
        )
        torch.optim.AdamW.__init__(self, params, **_with_float_betas(numbers), **flags)
        corrects, limit = bias_correction is None or bool(bias_correction), _limit(max_grad_norm)
        self._set_options(numbers, loss_scaling, **dtypes, bias_correction=corrects, max_grad_norm=limit)


def _with_float_betas(numbers: dict[str, Any]) -> dict[str, Any]:
    """Newer PyTorch insists on floats."""
    return numbers | {name: tuple(map(float, value)) for name, value in numbers.items() if name == "betas"}


def _limit(max_grad_norm: float | None) -> float:
    return math.inf if max_grad_norm is None else max_grad_norm


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, optionally `centered` (equal in all groups), with momentum, or TensorFlow's (on the device only)."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        *,
        capturable: bool | None = None,
    ) -> None:
        numbers = given(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)
        require_numbers(numbers)
        dtypes = moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = given(foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable)
        torch.optim.RMSprop.__init__(self, params, **numbers, **flags)
        self._set_options(numbers, loss_scaling, **dtypes, use_tf_variant=bool(use_tf_variant))
