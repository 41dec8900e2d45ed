"""`poptorch.optim.Adam` and `poptorch.optim.AdamW`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch.optim.arguments import accumulator_dtypes, given, require_numbers
from poptorch.optim.optimizer import Optimizer


class Adam(Optimizer, torch.optim.Adam):
    """Adam, with weight decay added to the gradient.

    Arguments that are not passed are compiled in as constants. `amsgrad` must stay False. Raises
    AssertionError for non-numbers and for accumulator types other than float32 and float16, ValueError as
    PyTorch does.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        numbers = _numbers(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        require_numbers(given(max_grad_norm=max_grad_norm))
        dtypes = accumulator_dtypes(
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        flags: dict[str, Any] = given(
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.Adam.__init__(self, params, **numbers, **flags)
        limit = math.inf if max_grad_norm is None else max_grad_norm
        self._set_options(numbers, loss_scaling, **dtypes, max_grad_norm=limit)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay.

    `bias_correction=False` has no numerical effect in this release: the device corrects the bias all the
    same. Arguments that are not passed are compiled in as constants. `amsgrad` must stay False. Raises
    AssertionError for non-numbers and for accumulator types other than float32 and float16, ValueError as
    PyTorch does.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        numbers = _numbers(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        require_numbers(given(max_grad_norm=max_grad_norm))
        dtypes = accumulator_dtypes(
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        flags: dict[str, Any] = given(
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.AdamW.__init__(self, params, **numbers, **flags)
        limit = math.inf if max_grad_norm is None else max_grad_norm
        corrects = True if bias_correction is None else bool(bias_correction)
        self._set_options(numbers, loss_scaling, **dtypes, bias_correction=corrects, max_grad_norm=limit)


def _numbers(**arguments: Any) -> dict[str, Any]:
    """Return the passed arguments, checked, with betas as the floats that newer PyTorch insists on."""
    passed = given(**arguments)
    require_numbers(passed)
    if "betas" in passed:
        passed["betas"] = tuple(float(beta) for beta in passed["betas"])
    return passed
