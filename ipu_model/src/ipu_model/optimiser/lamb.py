"""LAMB: AdamW's direction, scaled for each tensor by the ratio of the norms of weight and direction.

Symbols: w weight, g true gradient, m first and s second moment (mc and sc bias-corrected), wd weight decay,
lr learning rate, t update counter from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipu_model.optimiser.adam import adam_scalars, moment_slots, update_moments
from ipu_model.optimiser.roots import root
from ipu_model.optimiser.rule import Context, Entry, Scalars, Slot
from ipu_model.optimiser.spec import Hyper


@dataclass(frozen=True)
class Lamb:
    """`x <- mc/(sqrt(sc) + eps) + wd*w`; `w <- w - lr*r1/r2*x`.

    Here `r1 = min(norm(w), max_weight_norm)` and `r2 = norm(x)`. The ratio is 1 if either
    norm is 0. Without `bias_correction` mc and sc are m and s.
    """

    bias_correction: bool
    first: torch.dtype
    second: torch.dtype
    consumes_gradient: ClassVar[bool] = True

    @property
    def slots(self) -> tuple[Slot, Slot, Slot]:
        """First moment, second moment, update counter."""
        return moment_slots(self.first, self.second)

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the hyper-parameters as they are; gradients are unscaled before they are used."""
        return {**adam_scalars(hyper), "maxWeightNorm": hyper.max_weight_norm}

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update moments, counters and weights in place."""
        update_moments(entries, self.slots, scalars, context, l2=0.0)
        for entry in entries:
            step = float(entry.state["Step"].add_(1.0))
            direction = self._direction(entry, scalars, step)
            ratio = trust_ratio(entry.weight, direction, scalars["maxWeightNorm"])
            entry.weight.add_(direction, alpha=-scalars["learningRate"] * ratio)
        context.round_weights(entries)

    def _direction(self, entry: Entry, scalars: Scalars, step: float) -> Tensor:
        """Return `mc/(sqrt(sc) + eps) + wd*w`, computed in the gradient's memory."""
        correction1 = 1.0 - scalars["beta1"] ** step if self.bias_correction else 1.0
        correction2 = 1.0 - scalars["beta2"] ** step if self.bias_correction else 1.0
        denominator = root(entry.state["Accl2"], out=entry.gradient)
        denominator.div_(math.sqrt(correction2)).add_(scalars["eps"])
        direction = torch.div(entry.state["Accl1"], denominator, out=denominator).div_(correction1)
        if scalars["weightDecay"]:
            direction.add_(entry.weight, alpha=scalars["weightDecay"])
        return direction


def trust_ratio(weight: Tensor, direction: Tensor, max_weight_norm: float) -> float:
    """Return `min(norm(weight), max_weight_norm) / norm(direction)`, or 1 if either is 0."""
    weight_norm = min(float(torch.linalg.vector_norm(weight)), max_weight_norm)
    direction_norm = float(torch.linalg.vector_norm(direction))
    return 1.0 if weight_norm == 0.0 or direction_norm == 0.0 else weight_norm / direction_norm
