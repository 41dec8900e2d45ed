"""`poptorch.optim.SGD`."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch.optim.arguments import accumulator_dtypes, given, require_numbers
from poptorch.optim.optimizer import Optimizer

_logger = logging.getLogger("poptorch::python")


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum, weight decay, dampening and Nesterov momentum.

    With `use_combined_accum` one tensor serves as gradient accumulator and velocity, stored multiplied by
    `velocity_scaling`; otherwise they are two tensors of `accum_type` and `velocity_accum_type`. Arguments
    that are not passed are compiled in as constants. Raises AssertionError for non-numbers and for
    accumulator types other than float32 and float16, ValueError as PyTorch does.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        numbers = given(momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        require_numbers({"lr": lr, **numbers, **given(velocity_scaling=velocity_scaling, max_grad_norm=max_grad_norm)})
        dtypes = accumulator_dtypes(accum_type=accum_type, velocity_accum_type=velocity_accum_type)
        flags: dict[str, Any] = given(foreach=foreach, maximize=maximize, differentiable=differentiable, fused=fused)
        torch.optim.SGD.__init__(self, params, lr, **numbers, **flags)
        combined = bool(use_combined_accum)
        if combined:
            self._add_default("velocity_scaling", 1.0 if velocity_scaling is None else velocity_scaling)
        elif velocity_scaling is not None:
            _logger.warning("velocity_scaling is ignored: it is the loss scaling unless use_combined_accum=True.")
        self._set_options(
            {"lr", *numbers, *given(velocity_scaling=velocity_scaling)},
            loss_scaling,
            **dtypes,
            use_combined_accum=combined,
            max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
        )

    def _add_default(self, name: str, value: float) -> None:
        """Add a hyper-parameter that PyTorch's class does not know to the defaults and to every group."""
        self.defaults[name] = value
        for group in self.param_groups:
            group.setdefault(name, value)
