"""`poptorch.optim.RMSprop`."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch.optim.arguments import accumulator_dtypes, given, require_numbers
from poptorch.optim.optimizer import Optimizer


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, optionally centred, with momentum, or TensorFlow's (`use_tf_variant`, on the device only).

    Arguments that are not passed are compiled in as constants. `centered` must be equal in all groups. Raises
    AssertionError for non-numbers and for accumulator types other than float32 and float16, ValueError as
    PyTorch does.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
    ) -> None:
        numbers = given(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)
        require_numbers(numbers)
        dtypes = accumulator_dtypes(
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        flags: dict[str, Any] = given(
            foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable
        )
        torch.optim.RMSprop.__init__(self, params, **numbers, **flags)
        self._set_options(numbers, loss_scaling, **dtypes, use_tf_variant=bool(use_tf_variant))
