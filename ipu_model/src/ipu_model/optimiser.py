"""One optimiser as the device sees it, as plain data: numbers that it streams, state, and what is compiled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ipu_model.errors import Error
from ipu_model.step import FLOAT32, DType

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
    variable: frozenset[str] = frozenset()

    @property
    def compiled_in(self) -> Hyper:
        """The same group without the values of streamed numbers, which no compilation depends on."""
        return replace(self, **{name: getattr(Hyper, name) for name in self.variable})


@dataclass(frozen=True)
class OptimiserSpec:
    """One optimiser: `groups[i]` for the tensors of parameter group i, `default` for tensors of no group.

    `family` is a key of `FAMILIES`: "SGD1" keeps gradient accumulator and velocity in one tensor, "SGD2" apart; an SGD
    that needs no velocity has no state. The types are those of accumulator, velocity, and first and second moment.
    """

    family: str
    default: Hyper
    groups: tuple[Hyper, ...] = ()
    loss_scaling: float = 1.0
    loss_scaling_variable: bool = False
    max_grad_norm: float = math.inf
    use_tf_variant: bool = False
    accum_dtype: DType = FLOAT32
    velocity_dtype: DType = FLOAT32
    first_dtype: DType = FLOAT32
    second_dtype: DType = FLOAT32

    def hyper(self, group: int | None) -> Hyper:
        return self.default if group is None else self.groups[group]

    @property
    def compiled_in(self) -> OptimiserSpec:
        """The same optimiser without the values of streamed numbers: equal for all that share one executable."""
        scaling = OptimiserSpec.loss_scaling if self.loss_scaling_variable else self.loss_scaling
        groups = tuple(group.compiled_in for group in self.groups)
        return replace(self, default=self.default.compiled_in, groups=groups, loss_scaling=scaling)

    @property
    def attributes(self) -> tuple[str, ...]:
        return FAMILIES[self.family]

    def validate(self) -> None:
        if self.family not in FAMILIES:
            raise Error(f"Unknown optimiser family {self.family!r}; there are {', '.join(FAMILIES)}.")
        if self.loss_scaling == 0.0:
            raise Error("Loss scaling cannot be 0: gradients are divided by it. Use 1.0 for no scaling.")
        if math.isnan(self.max_grad_norm):
            raise Error("max_grad_norm is NaN, but gradients are clipped to it. Use inf, the default, for no limit.")
        if self.family == "SGD1" and any(h.velocity_scaling == 0.0 for h in (self.default, *self.groups)):
            raise Error("Velocity scaling cannot be 0: the velocity is divided by it. Use 1.0 for no scaling.")


@dataclass(frozen=True)
class StateTensor:
    """One state tensor per weight, called `<prefix>___<weight>`; of the weight's shape unless `single`."""

    prefix: str
    dtype: DType = FLOAT32
    initial: float = 0.0
    single: bool = False


class Algorithm(Enum):
    SGD = "SGD"
    SGD_COMBINED = "SGD with accumulator and velocity in one tensor"
    SGD_SEPARATE = "SGD with a velocity"
    ADAM = "Adam"
    LAMB = "LAMB"
    RMSPROP = "RMSprop"


@dataclass(frozen=True)
class WeightUpdate:
    """The compiled-in part of one weight's update: its arithmetic, its state, and settings of single families."""

    algorithm: Algorithm
    slots: tuple[StateTensor, ...] = ()
    nesterov: bool = False
    decoupled: bool = False
    corrects_bias: bool = False
    centred: bool = False
    has_momentum: bool = False
    tensorflow: bool = False

    @property
    def accumulates_in_state(self) -> bool:
        """Whether gradients are accumulated in the state, so that no separate accumulator exists."""
        return self.algorithm is Algorithm.SGD_COMBINED

    @property
    def weight_sized_state(self) -> tuple[StateTensor, ...]:
        return tuple(slot for slot in self.slots if not slot.single)


STEP = StateTensor("Step", single=True)


def weight_update(spec: OptimiserSpec, hyper: Hyper) -> WeightUpdate:
    may_have_momentum = hyper.momentum != 0.0 or "momentum" in hyper.variable
    if spec.family in ("SGD1", "SGD2") and not may_have_momentum:
        # PopART's sgd.cpp returns the simple op (SGD0ComboOp) before it creates any velocity.
        return WeightUpdate(Algorithm.SGD)
    if spec.family == "SGD1":
        return WeightUpdate(Algorithm.SGD_COMBINED, (StateTensor("Accl1", spec.accum_dtype),), nesterov=hyper.nesterov)
    if spec.family == "SGD2":
        velocity = StateTensor("Accl1", spec.velocity_dtype)
        return WeightUpdate(Algorithm.SGD_SEPARATE, (velocity,), nesterov=hyper.nesterov)
    moments = (StateTensor("Accl1", spec.first_dtype), StateTensor("Accl2", spec.second_dtype), STEP)
    if spec.family in ("ADAM", "ADAMW", "ADAMW_NO_BIAS"):
        # ADAMW_NO_BIAS is only a different name: on the device, PopTorch 3.4 corrects the bias anyway.
        return WeightUpdate(Algorithm.ADAM, moments, decoupled=spec.family != "ADAM")
    if spec.family in ("LAMB", "LAMB_NO_BIAS"):
        return WeightUpdate(Algorithm.LAMB, moments, corrects_bias=spec.family == "LAMB")
    # RMSprop keeps the average square, plus average gradient and momentum if used.
    centred = spec.family == "RMSPROP_CENTERED"
    slots = [StateTensor("Accl1", spec.first_dtype, initial=1.0 if spec.use_tf_variant else 0.0)]
    if centred:
        slots.append(StateTensor("Accl2", spec.second_dtype))
    if may_have_momentum:
        slots.append(StateTensor("Accl3", spec.second_dtype))
    return WeightUpdate(
        Algorithm.RMSPROP, tuple(slots), centred=centred, has_momentum=may_have_momentum, tensorflow=spec.use_tf_variant
    )
