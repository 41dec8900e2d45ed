"""Adam and AdamW.

Symbols: w weight, g true gradient, m first and s second moment, b1 and b2 betas, wd weight decay,
lr learning rate, t update counter from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ipu_model.optimiser import fused
from ipu_model.optimiser.roots import root
from ipu_model.optimiser.rule import Context, Entry, Scalars, Slot, states
from ipu_model.optimiser.spec import Hyper

STEP = Slot("Step", single=True)


def moment_slots(first: torch.dtype, second: torch.dtype) -> tuple[Slot, Slot, Slot]:
    """Return the slots of first moment, second moment and update counter."""
    return Slot("Accl1", first), Slot("Accl2", second), STEP


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
    entries: Sequence[Entry], slots: tuple[Slot, Slot, Slot], scalars: Scalars, context: Context, *, l2: float
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

    decoupled: bool
    first: torch.dtype
    second: torch.dtype
    consumes_gradient: ClassVar[bool] = True

    @property
    def slots(self) -> tuple[Slot, Slot, Slot]:
        """First moment, second moment, update counter."""
        return moment_slots(self.first, self.second)

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the hyper-parameters as they are; gradients are unscaled before they are used."""
        return adam_scalars(hyper)

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update moments, counters and weights in place."""
        steps = states(entries, STEP)
        for step in steps:
            step.add_(1.0)
        weights, gradients = [e.weight for e in entries], [e.gradient for e in entries]
        firsts, seconds = (states(entries, slot) for slot in self.slots[:2])
        regular = context.unscale != 0.0 and math.isfinite(context.unscale)
        if self.first == self.second == torch.float32 and regular and fused.fits(weights, gradients, firsts, seconds):
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
                decoupled=self.decoupled,
                divisor=fused.grad_scale(context.unscale),
            )
        else:
            self._update_plainly(entries, scalars, context)
        context.round_weights(entries)

    def _update_plainly(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate, decay = scalars["learningRate"], scalars["weightDecay"]
        update_moments(entries, self.slots, scalars, context, l2=0.0 if self.decoupled else decay)
        for entry in entries:
            step = float(entry.state["Step"])
            correction1, correction2 = 1.0 - scalars["beta1"] ** step, 1.0 - scalars["beta2"] ** step
            denominator = root(entry.state["Accl2"], out=entry.gradient)
            denominator.div_(math.sqrt(correction2)).add_(scalars["eps"])
            if self.decoupled and decay:
                entry.weight.add_(entry.weight, alpha=-rate * decay)
            entry.weight.addcdiv_(entry.state["Accl1"], denominator, value=-rate / correction1)
