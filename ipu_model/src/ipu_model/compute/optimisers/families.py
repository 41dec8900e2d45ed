"""Which arithmetic belongs to an update, and what the numbers are called that are sent to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ipu_model.compute.optimisers.adam import Adam, Lamb
from ipu_model.compute.optimisers.rmsprop import RMSprop
from ipu_model.compute.optimisers.sgd import Combined, Separate, Simple
from ipu_model.compute.optimisers.update_rule import UpdateRule
from ipu_model.optimiser import Algorithm, OptimiserSpec, WeightUpdate, weight_update

LOSS_SCALING = "lossScaling_FLOAT"
_OF_WEIGHT = "___specific___"


_RULES: Mapping[Algorithm, Callable[[WeightUpdate], UpdateRule]] = {
    Algorithm.SGD: Simple,
    Algorithm.SGD_COMBINED: Combined,
    Algorithm.SGD_SEPARATE: Separate,
    Algorithm.ADAM: Adam,
    Algorithm.LAMB: Lamb,
    Algorithm.RMSPROP: RMSprop,
}


def rule_for(update: WeightUpdate) -> UpdateRule:
    """Return the arithmetic of an update."""
    return _RULES[update.algorithm](update)


def scalar_name(scalar: str, weight: str) -> str:
    """Return the name of one weight's number on the device."""
    return f"{scalar}{_OF_WEIGHT}{weight}"


def is_scalar_name(name: str) -> bool:
    """Whether `name` can only be that of a number of some optimiser."""
    return name == LOSS_SCALING or _OF_WEIGHT in name


def scalar_names(spec: OptimiserSpec, weights: Iterable[str], group_of: Mapping[str, int | None]) -> list[str]:
    """Return the names of the numbers that the update of `weights` reads; the loss scaling, common to all, is last.

    Raises `Error` for values that no device can run with.
    """
    spec.validate()
    names = []
    for weight in weights:
        hyper = spec.hyper(group_of[weight])
        rule = rule_for(weight_update(spec, hyper))
        scalars = rule.scalars(hyper, spec.loss_scaling)
        names += [scalar_name(scalar, weight) for scalar in scalars]
    return [*names, LOSS_SCALING]
