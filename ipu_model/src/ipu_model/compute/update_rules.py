"""The arithmetic of the optimisers' updates, and the numbers that each of them reads on the device.

Symbols: w weight, g true gradient, lr learning rate, wd weight decay, mm momentum, dm dampening, v velocity, ls loss
scaling, vs velocity scaling, m and s first and second moment (mc and sc bias-corrected), b1 and b2 betas, t update
counter from 1. The gradients that arrive are `G = ls*g` (times 1/scale).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ipu_model.capture.torch_private import fused_adam_, fused_adamw_, fused_sgd_
from ipu_model.compute.rounding import Rounding
from ipu_model.optimiser import STEP, Algorithm, Hyper, OptimiserSpec, StateTensor, WeightUpdate, weight_update
from ipu_model.step import FLOAT16, FLOAT32

Scalars = Mapping[str, float]

LOSS_SCALING = "lossScaling_FLOAT"
_OF_WEIGHT = "___specific___"


@dataclass(frozen=True)
class Entry:
    """One weight about to be updated; `half`: on the float16 grid, `fresh`: its state never saw an update."""

    weight: Tensor
    gradient: Tensor
    state: Mapping[str, Tensor]
    half: bool
    fresh: bool


@dataclass(frozen=True)
class Context:
    """What one update shares: the true gradient is `gradient * scale / loss_scaling`."""

    scale: float
    loss_scaling: float
    rounding: Rounding

    @property
    def unscale(self) -> float:
        return self.scale / self.loss_scaling

    def round_weights(self, entries: Sequence[Entry]) -> None:
        self.rounding([entry.weight for entry in entries if entry.half])

    def round_state(self, entries: Sequence[Entry], slot: StateTensor) -> None:
        if slot.dtype == FLOAT16:
            self.rounding(_states(entries, slot))


@dataclass(frozen=True)
class UpdateRule:
    compiled: WeightUpdate
    # Whether `update` uses the gradient tensors as scratch space.
    consumes_gradient: ClassVar[bool] = True

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        raise NotImplementedError

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        raise NotImplementedError


class Simple(UpdateRule):
    """SGD without velocity: `w <- w*(1 - lr*(1-dm)*wd) - lr*(1-dm)*g`."""

    consumes_gradient = False

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        rate = hyper.lr * (1.0 - hyper.dampening)
        return {"scaledLearningRate0": rate / loss_scaling, "weightDecayScaleFactor0": 1.0 - rate * hyper.weight_decay}

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate = scalars["scaledLearningRate0"] * context.scale
        # Added as a difference: the factor itself, so close to 1, would lose most of its digits in float32.
        decay = scalars["weightDecayScaleFactor0"] - 1.0
        for entry in entries:
            if decay:
                entry.weight.add_(entry.weight, alpha=decay)
            entry.weight.add_(entry.gradient, alpha=-rate)
        context.round_weights(entries)


class Separate(UpdateRule):
    """`v <- mm*v + (1-dm)*(g + wd*w)`; `w <- w - lr*v`, or `w - lr*(g + wd*w + mm*v)` with Nesterov momentum.

    The tensor holds `ls*v`, so that a small velocity survives in half precision.
    """

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        return {
            "scaledLearningRate2": hyper.lr / loss_scaling,
            "scaledMomentum2": hyper.momentum,
            "dampeningScaleFactor2": 1.0 - hyper.dampening,
            "scaledWeightDecay2": hyper.weight_decay * loss_scaling,
        }

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        (slot,) = self.compiled.slots
        tensors = [[e.weight for e in entries], [e.gradient for e in entries], _states(entries, slot)]
        # The fused kernel leaves the velocity alone without momentum.
        if scalars["scaledMomentum2"] != 0.0 and _fits_fused(self.compiled.slots, context.scale):
            fused_sgd_(
                *tensors,
                lr=scalars["scaledLearningRate2"],
                momentum=scalars["scaledMomentum2"],
                dampening=1.0 - scalars["dampeningScaleFactor2"],
                weight_decay=scalars["scaledWeightDecay2"],
                nesterov=self.compiled.nesterov,
                maximize=False,
                is_first_step=False,
                grad_scale=_grad_scale(context.scale),
            )
        else:
            self._update_plainly(entries, scalars, context)
        context.round_weights(entries)

    def _update_plainly(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate, momentum = scalars["scaledLearningRate2"], scalars["scaledMomentum2"]
        for entry in entries:
            gradient = _prepared(entry, context.scale, scalars["scaledWeightDecay2"])
            entry.state["Accl1"].mul_(momentum).add_(gradient, alpha=scalars["dampeningScaleFactor2"])
        context.round_state(entries, self.compiled.slots[0])
        for entry in entries:
            gradient, velocity = entry.gradient, entry.state["Accl1"]
            step = gradient.add_(velocity, alpha=momentum) if self.compiled.nesterov else velocity
            entry.weight.add_(step, alpha=-rate)


class Combined(UpdateRule):
    """Accumulator and velocity in one tensor `a`, holding `vs*(mm*v + (1-dm)*wd*w)` between two updates.

    `a <- a + (1-dm)*vs*g` (now `vs*v`); `w <- w - lr/vs*a`, or with Nesterov momentum
    `w - lr/vs*(vs*g + vs*wd*w + mm*a)`; `a <- mm*a + (1-dm)*wd*vs*w`. As the last line prepares the next
    update, a change of mm, dm or wd takes full effect one update later.
    """

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
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
        momentum, decay = scalars["scaledMomentum1"], scalars["scaledWeightDecay1"]
        for entry in entries:
            combined = entry.state["Accl1"]
            if entry.fresh and decay:
                combined.add_(entry.weight, alpha=decay)
            combined.add_(entry.gradient, alpha=scalars["dampeningScaleFactor1"] * context.scale)
        context.round_state(entries, self.compiled.slots[0])
        for entry in entries:
            step = entry.state["Accl1"]
            if self.compiled.nesterov:
                gradient = entry.gradient.mul_(scalars["nesterovGradScaleFactor1"] * context.scale)
                if scalars["nesterovWeightDecay1"]:
                    gradient.add_(entry.weight, alpha=scalars["nesterovWeightDecay1"])
                step = gradient.add_(step, alpha=momentum)
            entry.weight.add_(step, alpha=-scalars["scaledLearningRate1"])
        context.round_weights(entries)
        for entry in entries:
            combined = entry.state["Accl1"].mul_(momentum)
            if decay:
                combined.add_(entry.weight, alpha=decay)
        context.round_state(entries, self.compiled.slots[0])


class _OfMoments(UpdateRule):
    """What Adam, AdamW and LAMB share; gradients are unscaled before they are used."""

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        return {
            "learningRate": hyper.lr,
            "weightDecay": hyper.weight_decay,
            "beta1": hyper.betas[0],
            "beta2": hyper.betas[1],
            "eps": hyper.eps,
        }

    def update_moments(self, entries: Sequence[Entry], scalars: Scalars, context: Context, *, l2: float) -> None:
        """Update in place: `g <- g + l2*w`, `m <- b1*m + (1-b1)*g`, `s <- b2*s + (1-b2)*g*g`."""
        beta1, beta2 = scalars["beta1"], scalars["beta2"]
        for entry in entries:
            gradient = _prepared(entry, context.unscale, l2)
            entry.state["Accl1"].mul_(beta1).add_(gradient, alpha=1.0 - beta1)
            entry.state["Accl2"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        for slot in self.compiled.slots[:2]:
            context.round_state(entries, slot)

    @staticmethod
    def denominator(entry: Entry, correction: float, eps: float) -> Tensor:
        return _root(entry.state["Accl2"], out=entry.gradient).div_(math.sqrt(correction)).add_(eps)


class Adam(_OfMoments):
    """`w <- w - lr*((m/(1-b1^t)) / (sqrt(s/(1-b2^t)) + eps))`.

    Weight decay is added to the gradient, or, if `decoupled` (AdamW), to the quotient as `wd*w`.
    """

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        steps = _states(entries, STEP)
        for step in steps:
            step.add_(1.0)
        moments = (_states(entries, slot) for slot in self.compiled.slots[:2])
        tensors = [[e.weight for e in entries], [e.gradient for e in entries], *moments]
        if _fits_fused(self.compiled.slots, context.unscale):
            kernel = fused_adamw_ if self.compiled.decoupled else fused_adam_
            kernel(
                *[*tensors, [], steps],
                lr=scalars["learningRate"],
                beta1=scalars["beta1"],
                beta2=scalars["beta2"],
                weight_decay=scalars["weightDecay"],
                eps=scalars["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=_grad_scale(context.unscale),
            )
        else:
            self._update_plainly(entries, scalars, context)
        context.round_weights(entries)

    def _update_plainly(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        rate, decay = scalars["learningRate"], scalars["weightDecay"]
        self.update_moments(entries, scalars, context, l2=0.0 if self.compiled.decoupled else decay)
        for entry in entries:
            step = float(entry.state["Step"])
            correction1, correction2 = 1.0 - scalars["beta1"] ** step, 1.0 - scalars["beta2"] ** step
            denominator = self.denominator(entry, correction2, scalars["eps"])
            if self.compiled.decoupled and decay:
                entry.weight.add_(entry.weight, alpha=-rate * decay)
            entry.weight.addcdiv_(entry.state["Accl1"], denominator, value=-rate / correction1)


class Lamb(_OfMoments):
    """`x <- mc/(sqrt(sc) + eps) + wd*w`; `w <- w - lr*r1/r2*x`.

    Here `r1 = min(norm(w), max_weight_norm)` and `r2 = norm(x)`. The ratio is 1 if either
    norm is 0. If the update does not correct the bias, mc and sc are m and s.
    """

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        return {**super().scalars(hyper, loss_scaling), "maxWeightNorm": hyper.max_weight_norm}

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        self.update_moments(entries, scalars, context, l2=0.0)
        corrects = self.compiled.corrects_bias
        for entry in entries:
            step = float(entry.state["Step"].add_(1.0))
            correction1, correction2 = (1.0 - scalars[b] ** step if corrects else 1.0 for b in ("beta1", "beta2"))
            denominator = self.denominator(entry, correction2, scalars["eps"])
            direction = torch.div(entry.state["Accl1"], denominator, out=denominator).div_(correction1)
            if scalars["weightDecay"]:
                direction.add_(entry.weight, alpha=scalars["weightDecay"])
            weight_norm = min(float(torch.linalg.vector_norm(entry.weight)), scalars["maxWeightNorm"])
            direction_norm = float(torch.linalg.vector_norm(direction))
            ratio = 1.0 if weight_norm == 0.0 or direction_norm == 0.0 else weight_norm / direction_norm
            entry.weight.add_(direction, alpha=-scalars["learningRate"] * ratio)
        context.round_weights(entries)


class RMSprop(UpdateRule):
    """`g <- g + wd*w`; `v1 <- alpha*v1 + (1-alpha)*g*g`; `d <- sqrt(v1 [- v2*v2]) + eps`; `w <- w - lr*g/d`.

    `centred` keeps `v2 <- alpha*v2 + (1-alpha)*g`; `has_momentum` keeps `v3 <- mm*v3 + g/d` and uses it instead of
    `g/d`. With `tensorflow`, v1 starts at 1, eps is added before the root is taken, and the learning rate is part of
    v3.
    """

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        return {
            "learningRate": hyper.lr,
            "weightDecay": hyper.weight_decay,
            "alpha": hyper.alpha,
            "momentum": hyper.momentum,
            "eps": hyper.eps,
        }

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        alpha, rate, eps = scalars["alpha"], scalars["learningRate"], scalars["eps"]
        for entry in entries:
            gradient = _prepared(entry, context.unscale, scalars["weightDecay"])
            entry.state["Accl1"].mul_(alpha).addcmul_(gradient, gradient, value=1.0 - alpha)
            if self.compiled.centred:
                entry.state["Accl2"].mul_(alpha).add_(gradient, alpha=1.0 - alpha)
        for slot in self.compiled.slots[: 2 if self.compiled.centred else 1]:
            context.round_state(entries, slot)
        if not self.compiled.has_momentum:
            for entry in entries:
                entry.weight.addcdiv_(entry.gradient, self._denominator(entry, eps), value=-rate)
        else:
            inner, outer = (rate, 1.0) if self.compiled.tensorflow else (1.0, rate)
            for entry in entries:
                buffer = entry.state["Accl3"].mul_(scalars["momentum"])
                buffer.addcdiv_(entry.gradient, self._denominator(entry, eps), value=inner)
            context.round_state(entries, self.compiled.slots[-1])
            for entry in entries:
                entry.weight.add_(entry.state["Accl3"], alpha=-outer)
        context.round_weights(entries)

    def _denominator(self, entry: Entry, eps: float) -> Tensor:
        variance = entry.state["Accl1"]
        if self.compiled.centred:
            mean = entry.state["Accl2"]
            variance = variance.addcmul(mean, mean, value=-1.0)
        if self.compiled.tensorflow:
            variance = variance + eps
            return _root(variance, out=variance)
        return _root(variance, out=torch.empty_like(variance)).add_(eps)


def _states(entries: Sequence[Entry], slot: StateTensor) -> list[Tensor]:
    return [entry.state[slot.prefix] for entry in entries]


def _prepared(entry: Entry, factor: float, l2: float) -> Tensor:
    """Return the gradient after `g <- factor*g + l2*w`, in place."""
    gradient = entry.gradient
    if factor != 1.0:
        gradient.mul_(factor)
    if l2:
        gradient.add_(entry.weight, alpha=l2)
    return gradient


def _root(x: Tensor, *, out: Tensor) -> Tensor:
    """Write `sqrt(x)` to `out`; `torch.sqrt` of zeros takes 5 times as long on some CPUs, of subnormals 30 times."""
    return torch.rsqrt(x, out=out).reciprocal_()


def _fits_fused(slots: Sequence[StateTensor], factor: float) -> bool:
    """Whether fused kernels, which do not round and divide by the inverse of `factor`, may run."""
    return factor != 0.0 and math.isfinite(factor) and all(slot.dtype == FLOAT32 for slot in slots)


def _grad_scale(factor: float) -> Any:
    return None if factor == 1.0 else torch.tensor(1.0 / factor)


_RULES = dict(zip(Algorithm, (Simple, Combined, Separate, Adam, Lamb, RMSprop)))


def rule_for(update: WeightUpdate) -> UpdateRule:
    return _RULES[update.algorithm](update)


def scalar_name(scalar: str, weight: str) -> str:
    return f"{scalar}{_OF_WEIGHT}{weight}"


def is_scalar_name(name: str) -> bool:
    """Whether `name` can only be that of a number of some optimiser."""
    return name == LOSS_SCALING or _OF_WEIGHT in name


def scalar_names(spec: OptimiserSpec, weights: Iterable[str], group_of: Mapping[str, int | None]) -> list[str]:
    """Return the names of the numbers that the update of `weights` reads; the loss scaling, common to all, is last."""
    spec.validate()
    names = []
    for weight in weights:
        hyper = spec.hyper(group_of[weight])
        scalars = rule_for(weight_update(spec, hyper)).scalars(hyper, spec.loss_scaling)
        names += [scalar_name(scalar, weight) for scalar in scalars]
    return [*names, LOSS_SCALING]
