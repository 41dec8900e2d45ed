"""Which update a weight gets: the part of an optimiser that is compiled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ipu_model.optimiser.adam import Adam
from ipu_model.optimiser.lamb import Lamb
from ipu_model.optimiser.rmsprop import RMSprop
from ipu_model.optimiser.rule import Rule
from ipu_model.optimiser.sgd import Combined, Separate, Simple
from ipu_model.optimiser.spec import Hyper, OptimiserSpec

LOSS_SCALING = "lossScaling_FLOAT"
_OF_WEIGHT = "___specific___"


def rule_for(spec: OptimiserSpec, hyper: Hyper, *, accumulates: bool) -> Rule:
    """Return the update for weights with the numbers `hyper`, with gradient accumulation or without."""
    if spec.family in ("SGD1", "SGD2"):
        return _sgd(spec, hyper, accumulates)
    if spec.family in ("ADAM", "ADAMW", "ADAMW_NO_BIAS"):
        # ADAMW_NO_BIAS is only a name of its own: PopTorch 3.4's device corrects the bias all the same.
        return Adam(spec.family != "ADAM", spec.first_dtype, spec.second_dtype)
    if spec.family in ("LAMB", "LAMB_NO_BIAS"):
        return Lamb(spec.family == "LAMB", spec.first_dtype, spec.second_dtype)
    return RMSprop(
        spec.family == "RMSPROP_CENTERED",
        hyper.may_have_momentum,
        spec.use_tf_variant,
        spec.first_dtype,
        spec.second_dtype,
    )


def _sgd(spec: OptimiserSpec, hyper: Hyper, accumulates: bool) -> Rule:
    if not accumulates and not hyper.may_have_momentum:
        return Simple()
    if spec.family == "SGD1":
        return Combined(hyper.nesterov, spec.accum_dtype)
    return Separate(hyper.nesterov, spec.velocity_dtype)


def state_dtypes(spec: OptimiserSpec, hyper: Hyper, *, accumulates: bool) -> dict[str, torch.dtype]:
    """Return the state of each weight with the numbers `hyper`: prefix ("Accl1", "Step", ...) -> dtype."""
    return {slot.prefix: slot.dtype for slot in rule_for(spec, hyper, accumulates=accumulates).slots}


def scalar_name(scalar: str, weight: str) -> str:
    """Return the name of one weight's number on the device."""
    return f"{scalar}{_OF_WEIGHT}{weight}"


def is_scalar_name(name: str) -> bool:
    """Whether `name` can only be that of a number of some optimiser."""
    return name == LOSS_SCALING or _OF_WEIGHT in name


def scalar_names(
    spec: OptimiserSpec, weights: Iterable[str], group_of: Mapping[str, int | None], *, accumulates: bool
) -> list[str]:
    """Return the names of the numbers that the update of `weights` reads; the loss scaling, common to all, is last.

    Raises `Error` for values that no device can run with.
    """
    spec.validate()
    names = []
    for weight in weights:
        hyper = spec.hyper(group_of[weight])
        scalars = rule_for(spec, hyper, accumulates=accumulates).scalars(hyper, spec.loss_scaling)
        names += [scalar_name(scalar, weight) for scalar in scalars]
    return [*names, LOSS_SCALING]
