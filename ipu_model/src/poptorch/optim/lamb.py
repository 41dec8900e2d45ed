"""`poptorch.optim.LAMB`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ipu_model.compute.rounding import Rounding
from ipu_model.compute.update_rules import Context, Entry, Lamb
from ipu_model.optimiser import Algorithm, Hyper, WeightUpdate
from poptorch.optim.optimizer import Optimizer, given, moment_dtypes, require_numbers

_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}


class LAMB(Optimizer, torch.optim.Optimizer):
    """LAMB: Adam with decoupled weight decay and a step scaled, for each tensor, to the norm of the weights.

    `max_weight_norm=None` means 65500, no limit in practice. Arguments that are not passed are compiled in as
    constants. Raises AssertionError for non-numbers and for accumulator types other than float32 and float16,
    ValueError for numbers out of range.
    """

    max_weight_norm: float
    bias_correction: bool

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        numbers = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm)
        require_numbers(numbers)
        defaults: dict[str, Any] = {**_DEFAULTS, **numbers}
        for name, shown in (("lr", "learning rate"), ("eps", "epsilon value"), ("weight_decay", "weight_decay value")):
            if not defaults[name] >= 0.0:
                raise ValueError(f"Invalid {shown}: {defaults[name]}; it must not be negative.")
        for index, beta in enumerate(defaults["betas"]):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}; it must be in [0, 1).")
        dtypes = moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        torch.optim.Optimizer.__init__(self, params, defaults)
        corrects, limit = bias_correction is None or bool(bias_correction), defaults["max_weight_norm"]
        self._set_options(numbers, loss_scaling, **dtypes, bias_correction=corrects, max_weight_norm=limit)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters on the CPU as the device would; return what `closure` returns.

        The limit on the weight norm is the attribute `max_weight_norm`, not the groups'.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state.update(step=torch.zeros(()), **zeros)
        tensors = {"Accl1": state["exp_avg"], "Accl2": state["exp_avg_sq"], "Step": state["step"]}
        assert parameter.grad is not None
        entry = Entry(parameter, parameter.grad.clone(), tensors, half=False, fresh=False)
        numbers = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        hyper = Hyper(**numbers, max_weight_norm=self.max_weight_norm)
        rule = Lamb(WeightUpdate(Algorithm.LAMB, corrects_bias=self.bias_correction))
        rule.update([entry], rule.scalars(hyper, 1.0), Context(1.0, 1.0, Rounding()))
