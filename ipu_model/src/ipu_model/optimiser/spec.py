"""What one optimiser is to the device: the numbers it streams, and everything that is compiled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ipu_model.errors import Error

_ADAM = ("lr", "betas", "eps", "weight_decay")
_LAMB = (*_ADAM, "max_weight_norm")
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
_RMSPROP = ("lr", "alpha", "eps", "weight_decay", "momentum")

# Family name (as in messages) -> the attributes of `Hyper` that its update uses.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "SGD1": (*_SGD, "velocity_scaling"),
    "SGD2": _SGD,
    "ADAM": _ADAM,
    "ADAMW": _ADAM,
    "ADAMW_NO_BIAS": _ADAM,
    "RMSPROP": _RMSPROP,
    "RMSPROP_CENTERED": _RMSPROP,
    "LAMB": _LAMB,
    "LAMB_NO_BIAS": _LAMB,
}


@dataclass(frozen=True)
class Hyper:
    """The numbers of one parameter group; `variable` names those that are streamed instead of compiled in."""

    lr: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    velocity_scaling: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    alpha: float = 0.99
    max_weight_norm: float = 65500.0
    variable: frozenset[str] = field(default_factory=frozenset)

    @property
    def may_have_momentum(self) -> bool:
        """Whether momentum is, or may become, other than zero; such weights need a velocity tensor."""
        return self.momentum != 0.0 or "momentum" in self.variable


@dataclass(frozen=True)
class OptimiserSpec:
    """One optimiser: `groups[i]` for the tensors of parameter group i, `default` for tensors of no group.

    `family` is a key of `FAMILIES`: "SGD1" keeps gradient accumulator and velocity in one tensor, "SGD2"
    apart; an SGD that needs no velocity has no state at all. The `*_dtype` are those of the gradient
    accumulator, the velocity, and the first and second moment.
    """

    family: str
    default: Hyper
    groups: tuple[Hyper, ...] = ()
    loss_scaling: float = 1.0
    loss_scaling_variable: bool = False
    max_grad_norm: float = math.inf
    use_tf_variant: bool = False
    accum_dtype: torch.dtype = torch.float32
    velocity_dtype: torch.dtype = torch.float32
    first_dtype: torch.dtype = torch.float32
    second_dtype: torch.dtype = torch.float32

    def hyper(self, group: int | None) -> Hyper:
        """Return the numbers for tensors of parameter group `group`, or of no group for `None`."""
        return self.default if group is None else self.groups[group]

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes of `Hyper` that this family uses."""
        return FAMILIES[self.family]

    def validate(self) -> None:
        """Raise `Error` for values that no device can run with."""
        if self.family not in FAMILIES:
            raise Error(f"Unknown optimiser family {self.family!r}; there are {', '.join(FAMILIES)}.")
        if self.loss_scaling == 0.0:
            raise Error("Loss scaling cannot be 0: gradients are divided by it. Use 1.0 for no scaling.")
        if math.isnan(self.max_grad_norm):
            raise Error("max_grad_norm is NaN, but gradients are clipped to it. Use inf, the default, for no limit.")
        if self.family == "SGD1" and any(h.velocity_scaling == 0.0 for h in (self.default, *self.groups)):
            raise Error("Velocity scaling cannot be 0: the velocity is divided by it. Use 1.0 for no scaling.")
