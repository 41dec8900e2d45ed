"""Automatic loss scaling: a factor on the loss scaling that follows the histogram of the half-precision gradients.

After each period of weight updates it computes the proportion of gradient elements whose magnitude reaches the bin
edge. If the proportion exceeds the threshold, gradients are close to the end of the float16 range and the factor is
halved. Otherwise the factor is doubled. Settings and their defaults are those of PopART's automaticLossScalingSettings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR, FINAL = "lossScaleUpdateFactor", "finalLossScale"

_LARGEST = torch.finfo(torch.float16).max
# If gradients stay NaN, repeated halving must not lead to a division by zero.
_LEAST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class LossScalingSettings:
    """`bin_edge` is a share of the largest float16, `threshold` a share of all elements, `period` in weight updates."""

    bin_edge: float = 0.125
    threshold: float = 1e-7
    period: int = 1


class AutomaticLossScaling:
    """Watches the scaled gradients and adapts `factor`, a power of two.

    `half` tells which gradients are float16 on the device; the others are not counted. `loss_dtype` is the element type
    of the loss: the final loss scale stays at or below the largest power of two that this type can hold. `across` sums
    over other processes in place.
    """

    def __init__(
        self,
        settings: LossScalingSettings,
        half: Sequence[bool],
        loss_dtype: torch.dtype,
        across: Callable[[list[Tensor]], None] | None = None,
    ) -> None:
        self._settings, self._half, self._across = settings, half, across
        self._edge = settings.bin_edge * _LARGEST
        self._limit = 2.0 ** math.floor(math.log2(torch.finfo(loss_dtype).max))
        self.factor = 1.0
        self._updates = 0
        self._elements, self._above = 0, 0

    def observe(self, gradients: Sequence[Tensor]) -> None:
        """Count the elements of one micro-batch's gradients; infinities and NaN lie above the edge."""
        for gradient, half in zip(gradients, self._half):
            if half:
                self._elements += gradient.numel()
                self._above += gradient.numel() - int(torch.count_nonzero(gradient.abs() < self._edge))

    def adapt(self, loss_scaling: float) -> None:
        """Count a weight update and, once per period, halve or double the factor.

        `loss_scaling` is the optimiser's, without the factor.
        """
        self._updates += 1
        if self._updates % self._settings.period:
            return
        counts = [torch.tensor([self._elements, self._above], dtype=torch.float64)]
        if self._across is not None:
            self._across(counts)
        elements, above = counts[0].tolist()
        self._elements, self._above = 0, 0
        if elements and above / elements > self._settings.threshold:
            self.factor = max(self.factor / 2, _LEAST)
        elif abs(loss_scaling) * self.factor * 2 <= self._limit:
            self.factor *= 2
