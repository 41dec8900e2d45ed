"""RMSprop, plain or centred, as PyTorch or as TensorFlow defines it.

Symbols: w weight, g true gradient, v1 average square, v2 average gradient, v3 momentum buffer, mm momentum,
wd weight decay, lr learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipu_model.compute.optimisers.update_rule import Context, Entry, Scalars, root
from ipu_model.optimiser import Hyper, WeightUpdate


@dataclass(frozen=True)
class RMSprop:
    """`g <- g + wd*w`; `v1 <- alpha*v1 + (1-alpha)*g*g`; `d <- sqrt(v1 [- v2*v2]) + eps`; `w <- w - lr*g/d`.

    `centred` keeps `v2 <- alpha*v2 + (1-alpha)*g`; `has_momentum` keeps `v3 <- mm*v3 + g/d` and uses it
    instead of `g/d`. With `tensorflow`, v1 starts at 1, eps is added before the root is taken, and the
    learning rate is part of v3.
    """

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the hyper-parameters as they are; gradients are unscaled before they are used."""
        return {
            "learningRate": hyper.lr,
            "weightDecay": hyper.weight_decay,
            "alpha": hyper.alpha,
            "momentum": hyper.momentum,
            "eps": hyper.eps,
        }

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update averages, momentum buffers and weights in place."""
        for entry in entries:
            self._update_averages(entry, scalars, context)
        for slot in self.compiled.slots[: 2 if self.compiled.centred else 1]:
            context.round_state(entries, slot)
        self._update_weights(entries, scalars, context)
        context.round_weights(entries)

    def _update_averages(self, entry: Entry, scalars: Scalars, context: Context) -> None:
        gradient, alpha = entry.gradient, scalars["alpha"]
        if context.unscale != 1.0:
            gradient.mul_(context.unscale)
        if scalars["weightDecay"]:
            gradient.add_(entry.weight, alpha=scalars["weightDecay"])
        entry.state["Accl1"].mul_(alpha).addcmul_(gradient, gradient, value=1.0 - alpha)
        if self.compiled.centred:
            entry.state["Accl2"].mul_(alpha).add_(gradient, alpha=1.0 - alpha)

    def _denominator(self, entry: Entry, eps: float) -> Tensor:
        variance = entry.state["Accl1"]
        if self.compiled.centred:
            mean = entry.state["Accl2"]
            variance = variance.addcmul(mean, mean, value=-1.0)
        if self.compiled.tensorflow:
            variance = variance + eps
            return root(variance, out=variance)
        return root(variance, out=torch.empty_like(variance)).add_(eps)

    def _update_weights(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Apply `g/d`, through the momentum buffers if there are any."""
        rate, eps = scalars["learningRate"], scalars["eps"]
        if not self.compiled.has_momentum:
            for entry in entries:
                entry.weight.addcdiv_(entry.gradient, self._denominator(entry, eps), value=-rate)
            return
        inner, outer = (rate, 1.0) if self.compiled.tensorflow else (1.0, rate)
        for entry in entries:
            buffer = entry.state["Accl3"].mul_(scalars["momentum"])
            buffer.addcdiv_(entry.gradient, self._denominator(entry, eps), value=inner)
        context.round_state(entries, self.compiled.slots[-1])
        for entry in entries:
            entry.weight.add_(entry.state["Accl3"], alpha=-outer)
