"""What each layer holds at one moment of a training, and how much of it half precision can hold."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Tuple

import torch
from torch import Tensor

WEIGHTS, ACTIVATIONS = "weights", "activations"
ACTIVATION_GRADIENTS, WEIGHT_GRADIENTS = "activation gradients", "weight gradients"
UPDATED = "updated weights"
GRADIENTS = (ACTIVATION_GRADIENTS, WEIGHT_GRADIENTS)
QUANTITIES = (WEIGHTS, ACTIVATIONS, *GRADIENTS)
LARGEST_HALF = 65504.0
SMALLEST_NORMAL, VANISHING = -14, -25  # exponents: below the one digits are lost, up to the other a value becomes zero

LayerValues = Mapping[Tuple[str, str], Tensor]
"""The tensor of each pair of layer and quantity, without loss scaling."""


class RangeShares(NamedTuple):
    """Which shares, 0 to 1, of the non-zero values half precision makes zero, holds as subnormal, or cannot hold."""

    zero: float
    subnormal: float
    overflow: float

    @property
    def normal(self) -> float:
        """The share that half precision holds with all its digits."""
        return 1.0 - self.zero - self.subnormal - self.overflow


def range_shares(values: Tensor, exponent: int = 0) -> RangeShares:
    """Return the shares for ``values`` times 2 to the power of ``exponent``. Values that are zero do not count."""
    sizes = values.detach().double().abs().flatten()
    sizes = sizes[sizes > 0] * 2.0**exponent
    if not len(sizes):
        return RangeShares(0.0, 0.0, 0.0)
    lost = float((sizes <= 2.0**VANISHING).double().mean())
    small = float((sizes < 2.0**SMALLEST_NORMAL).double().mean()) - lost
    return RangeShares(lost, small, float((sizes > LARGEST_HALF).double().mean()))


def is_scaled(quantity: str) -> bool:
    """Tell whether loss scaling multiplies a quantity."""
    return quantity in GRADIENTS


def gradients_of(values: LayerValues) -> list[Tensor]:
    """Return the gradients of all layers, of activations and of weights."""
    return [tensor for (_, quantity), tensor in values.items() if quantity in GRADIENTS]


def largest_gradient(values: LayerValues) -> float:
    """Return the largest absolute gradient of all layers."""
    return max(float(each.abs().max()) for each in gradients_of(values))


def half_ulp(values: Tensor) -> Tensor:
    """Return half the distance of float16 numbers at ``values``, in float32: what an update must exceed to be seen."""
    wide = values.detach().float()
    _, exponents = torch.frexp(wide)
    return torch.ldexp(torch.ones_like(wide), exponents.clamp(min=SMALLEST_NORMAL + 1) - 12)
