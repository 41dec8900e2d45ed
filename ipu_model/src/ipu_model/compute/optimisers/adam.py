"""Adam and AdamW; LAMB, which scales AdamW's direction for each tensor.

Symbols: w weight, g true gradient, m first and s second moment (mc and sc bias-corrected), b1 and b2 betas,
wd weight decay, lr learning rate, t update counter from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipu_model.compute.optimisers import fused
from ipu_model.compute.optimisers.update_rule import Context, Entry, Scalars, root, states
from ipu_model.optimiser import STEP, Hyper, StateTensor, WeightUpdate
from ipu_model.step import FLOAT32


def adam_scalars(hyper: Hyper) -> dict[str, float]:
    """Return the scalars that Adam, AdamW and LAMB share."""
    return {
        "learningRate": hyper.lr,
        "weightDecay": hyper.weight_decay,
        "beta1": hyper.betas[0],
        "beta2": hyper.betas[1],
        "eps": hyper.eps,
    }


def update_moments(
    entries: Sequence[Entry], slots: tuple[StateTensor, ...], scalars: Scalars, context: Context, *, l2: float
) -> None:
    """Update in place: `g <- g + l2*w`, `m <- b1*m + (1-b1)*g`, `s <- b2*s + (1-b2)*g*g`."""
    beta1, beta2 = scalars["beta1"], scalars["beta2"]
    for entry in entries:
        gradient = entry.gradient
        if context.unscale != 1.0:
            gradient.mul_(context.unscale)
        if l2:
            gradient.add_(entry.weight, alpha=l2)
        entry.state["Accl1"].mul_(beta1).add_(gradient, alpha=1.0 - beta1)
        entry.state["Accl2"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    for slot in slots[:2]:
        context.round_state(entries, slot)


@dataclass(frozen=True)
class Adam:
    """`w <- w - lr*((m/(1-b1^t)) / (sqrt(s/(1-b2^t)) + eps))`.

    Weight decay is added to the gradient, or, if `decoupled` (AdamW), to the quotient as `wd*w`.
    """

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the hyper-parameters as they are; gradients are unscaled before they are used."""
        return adam_scalars(hyper)

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update moments, counters and weights in place."""
        steps = states(entries, STEP)
        for step in steps:
            step.add_(1.0)
        weights, gradients = [e.weight for e in entries], [e.gradient for e in entries]
        firsts, seconds = (states(entries, slot) for slot in self.compiled.slots[:2])
        regular = context.unscale != 0.0 and math.isfinite(context.unscale)
        if (
            all(slot.dtype == FLOAT32 for slot in self.compiled.slots)
            and regular
            and fused.fits(weights, gradients, firsts, seconds)
        ):
            fused.adam_(
                weights,
                gradients,
                firsts,
                seconds,
                steps,
                lr=scalars["learningRate"],
                betas=(scalars["beta1"], scalars["beta2"]),
                eps=scalars["eps"],
                weight_decay=scalars["weightDecay"],
                decoupled=self.compiled.decoupled,
                divisor=fused.grad_scale(context.unscale),
            )
        else:
            self._update_plainly(entries, scalars, context)
        context.round_weights(entries)

    def _update_plainly(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate, decay = scalars["learningRate"], scalars["weightDecay"]
        update_moments(entries, self.compiled.slots, scalars, context, l2=0.0 if self.compiled.decoupled else decay)
        for entry in entries:
            step = float(entry.state["Step"])
            correction1, correction2 = 1.0 - scalars["beta1"] ** step, 1.0 - scalars["beta2"] ** step
            denominator = root(entry.state["Accl2"], out=entry.gradient)
            denominator.div_(math.sqrt(correction2)).add_(scalars["eps"])
            if self.compiled.decoupled and decay:
                entry.weight.add_(entry.weight, alpha=-rate * decay)
            entry.weight.addcdiv_(entry.state["Accl1"], denominator, value=-rate / correction1)


@dataclass(frozen=True)
class Lamb:
    """`x <- mc/(sqrt(sc) + eps) + wd*w`; `w <- w - lr*r1/r2*x`.

    Here `r1 = min(norm(w), max_weight_norm)` and `r2 = norm(x)`. The ratio is 1 if either
    norm is 0. If the update does not correct the bias, mc and sc are m and s.
    """

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the hyper-parameters as they are; gradients are unscaled before they are used."""
        return {**adam_scalars(hyper), "maxWeightNorm": hyper.max_weight_norm}

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update moments, counters and weights in place."""
        update_moments(entries, self.compiled.slots, scalars, context, l2=0.0)
        for entry in entries:
            step = float(entry.state["Step"].add_(1.0))
            direction = self._direction(entry, scalars, step)
            ratio = trust_ratio(entry.weight, direction, scalars["maxWeightNorm"])
            entry.weight.add_(direction, alpha=-scalars["learningRate"] * ratio)
        context.round_weights(entries)

    def _direction(self, entry: Entry, scalars: Scalars, step: float) -> Tensor:
        """Return `mc/(sqrt(sc) + eps) + wd*w`, computed in the gradient's memory."""
        correction1 = 1.0 - scalars["beta1"] ** step if self.compiled.corrects_bias else 1.0
        correction2 = 1.0 - scalars["beta2"] ** step if self.compiled.corrects_bias else 1.0
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
