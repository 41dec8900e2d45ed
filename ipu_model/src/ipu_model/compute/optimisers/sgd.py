"""Stochastic gradient descent: the simple form, and momentum with a separate or a combined accumulator.

Symbols: w weight, g true gradient, v velocity, lr learning rate, mm momentum, dm dampening, wd weight decay,
ls loss scaling, vs velocity scaling. The gradients that arrive are `G = ls*g` (times 1/scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ipu_model.compute.optimisers import fused
from ipu_model.compute.optimisers.update_rule import Context, Entry, Scalars, states
from ipu_model.optimiser import Hyper, WeightUpdate
from ipu_model.step import FLOAT32


@dataclass(frozen=True)
class Simple:
    """No velocity: `w <- w*(1 - lr*(1-dm)*wd) - lr*(1-dm)*g`."""

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = False

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return `lr*(1-dm)/ls` and `1 - lr*(1-dm)*wd`."""
        rate = hyper.lr * (1.0 - hyper.dampening)
        return {
            "scaledLearningRate0": rate / loss_scaling,
            "weightDecayScaleFactor0": 1.0 - rate * hyper.weight_decay,
        }

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update weights in place."""
        rate = scalars["scaledLearningRate0"] * context.scale
        # Added as a difference: the factor itself, so close to 1, would lose most of its digits in float32.
        decay = scalars["weightDecayScaleFactor0"] - 1.0
        for entry in entries:
            if decay:
                entry.weight.add_(entry.weight, alpha=decay)
            entry.weight.add_(entry.gradient, alpha=-rate)
        context.round_weights(entries)


@dataclass(frozen=True)
class Separate:
    """`v <- mm*v + (1-dm)*(g + wd*w)`; `w <- w - lr*v`, or `w - lr*(g + wd*w + mm*v)` with Nesterov momentum.

    The tensor holds `ls*v`, so that a small velocity survives in half precision.
    """

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return `lr/ls`, `mm`, `1-dm` and `ls*wd`."""
        return {
            "scaledLearningRate2": hyper.lr / loss_scaling,
            "scaledMomentum2": hyper.momentum,
            "dampeningScaleFactor2": 1.0 - hyper.dampening,
            "scaledWeightDecay2": hyper.weight_decay * loss_scaling,
        }

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update velocities and weights in place."""
        weights, gradients = [e.weight for e in entries], [e.gradient for e in entries]
        velocities = states(entries, self.compiled.slots[0])
        # The fused kernel leaves the velocity alone without momentum, and divides gradients by 1/scale.
        regular = scalars["scaledMomentum2"] != 0.0 and context.scale != 0.0 and math.isfinite(context.scale)
        if self.compiled.slots[0].dtype == FLOAT32 and regular and fused.fits(weights, gradients, velocities):
            fused.sgd_(
                weights,
                gradients,
                velocities,
                lr=scalars["scaledLearningRate2"],
                momentum=scalars["scaledMomentum2"],
                dampening=1.0 - scalars["dampeningScaleFactor2"],
                weight_decay=scalars["scaledWeightDecay2"],
                nesterov=self.compiled.nesterov,
                divisor=fused.grad_scale(context.scale),
            )
        else:
            self._update_plainly(entries, scalars, context)
        context.round_weights(entries)

    def _update_plainly(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate, momentum = scalars["scaledLearningRate2"], scalars["scaledMomentum2"]
        for entry in entries:
            gradient, velocity = entry.gradient, entry.state["Accl1"]
            if context.scale != 1.0:
                gradient.mul_(context.scale)
            if scalars["scaledWeightDecay2"]:
                gradient.add_(entry.weight, alpha=scalars["scaledWeightDecay2"])
            velocity.mul_(momentum).add_(gradient, alpha=scalars["dampeningScaleFactor2"])
        context.round_state(entries, self.compiled.slots[0])
        for entry in entries:
            gradient, velocity = entry.gradient, entry.state["Accl1"]
            step = gradient.add_(velocity, alpha=momentum) if self.compiled.nesterov else velocity
            entry.weight.add_(step, alpha=-rate)


@dataclass(frozen=True)
class Combined:
    """Accumulator and velocity in one tensor `a`, holding `vs*(mm*v + (1-dm)*wd*w)` between two updates.

    `a <- a + (1-dm)*vs*g` (now `vs*v`); `w <- w - lr/vs*a`, or with Nesterov momentum
    `w - lr/vs*(vs*g + vs*wd*w + mm*a)`; `a <- mm*a + (1-dm)*wd*vs*w`. As the last line prepares the next
    update, a change of mm, dm or wd takes full effect one update later.
    """

    compiled: WeightUpdate
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return `lr/vs`, `mm`, `(1-dm)*vs/ls`, `(1-dm)*wd*vs`; with Nesterov also `vs/ls` and `wd*vs`."""
        scaling, kept = hyper.velocity_scaling, 1.0 - hyper.dampening
        scalars = {
            "scaledLearningRate1": hyper.lr / scaling,
            "scaledMomentum1": hyper.momentum,
            "dampeningScaleFactor1": kept * scaling / loss_scaling,
            "scaledWeightDecay1": kept * hyper.weight_decay * scaling,
        }
        if self.compiled.nesterov:
            scalars["nesterovGradScaleFactor1"] = scaling / loss_scaling
            scalars["nesterovWeightDecay1"] = hyper.weight_decay * scaling
        return scalars

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update weights and combined tensors in place."""
        momentum, decay = scalars["scaledMomentum1"], scalars["scaledWeightDecay1"]
        for entry in entries:
            combined = entry.state["Accl1"]
            if entry.fresh and decay:
                combined.add_(entry.weight, alpha=decay)
            combined.add_(entry.gradient, alpha=scalars["dampeningScaleFactor1"] * context.scale)
        context.round_state(entries, self.compiled.slots[0])
        for entry in entries:
            self._update_weight(entry, scalars, context)
        context.round_weights(entries)
        for entry in entries:
            combined = entry.state["Accl1"].mul_(momentum)
            if decay:
                combined.add_(entry.weight, alpha=decay)
        context.round_state(entries, self.compiled.slots[0])

    def _update_weight(self, entry: Entry, scalars: Scalars, context: Context) -> None:
        step = entry.state["Accl1"]
        if self.compiled.nesterov:
            gradient = entry.gradient.mul_(scalars["nesterovGradScaleFactor1"] * context.scale)
            if scalars["nesterovWeightDecay1"]:
                gradient.add_(entry.weight, alpha=scalars["nesterovWeightDecay1"])
            step = gradient.add_(step, alpha=scalars["scaledMomentum1"])
        entry.weight.add_(step, alpha=-scalars["scaledLearningRate1"])
