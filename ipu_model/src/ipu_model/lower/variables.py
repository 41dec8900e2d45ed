"""What each trainable tensor costs: accumulation in every micro-batch, the optimiser in every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from ipu_model.cost import update
from ipu_model.cost.device import Device, Element
from ipu_model.cost.reduction import reduced
from ipu_model.cost.update import Updated
from ipu_model.cost.work import Work
from ipu_model.lower.result import VariableCost
from ipu_model.lower.settings import CostSettings
from ipu_model.optimiser import Algorithm, Hyper, OptimiserSpec, weight_update
from ipu_model.step import DType, Step, Variable


def variable_ipus(step: Step) -> dict[str, int]:
    """Return the IPU that first uses each variable, by the variable's name; 0 for unused ones."""
    users = {variable.name: step.readers.get(variable.tensor, ()) for variable in step.variables}
    return {name: ops[0].ipu if ops else 0 for name, ops in users.items()}


def accumulation_costs(
    step: Step,
    settings: CostSettings,
    accumulator: DType | None = None,
    *,
    held: Mapping[str, int] | None = None,
) -> tuple[VariableCost, ...]:
    """Return the cost of adding one micro-batch's gradients to the accumulators.

    `accumulator` is their element type (`None`: that of each weight); `held` says how many elements of a
    variable this replica accumulates, where it does not all. Trainable tensors without a gradient cost nothing.
    """
    ipus = variable_ipus(step)
    accumulate = lru_cache(maxsize=None)(partial(update.accumulate, settings.device))  # many tensors are alike
    return tuple(
        VariableCost(v.name, ipus[v.name], tensor.elements, accumulate(tensor))
        for v, tensor in _updated(step, accumulator, held or {})
    )


def update_costs(
    step: Step,
    settings: CostSettings,
    spec: OptimiserSpec,
    *,
    accumulates: bool,
    group_of: Mapping[str, int | None] | None = None,
    held: Mapping[str, int] | None = None,
) -> tuple[VariableCost, ...]:
    """Return the cost of one optimiser step for every trainable tensor that has a gradient.

    `group_of` maps variables to parameter groups of `spec` (default: all have the default numbers);
    `accumulates` tells whether gradient accumulation is above 1; `held` says how many elements of a variable
    this replica updates, where it does not all.
    """
    ipus, groups = variable_ipus(step), group_of or {}
    cost = lru_cache(maxsize=None)(partial(_update, settings.device, accumulates=accumulates))  # many tensors are alike
    found = []
    for variable, tensor in _updated(step, spec.accum_dtype, held or {}):
        hyper = spec.hyper(groups.get(variable.name))
        typed = replace(
            tensor, accumulates=accumulates,
            weight_decay=hyper.weight_decay != 0.0 or "weight_decay" in hyper.variable,
            first=Element.of(spec.velocity_dtype if spec.family.startswith("SGD") else spec.first_dtype),
            second=Element.of(spec.second_dtype),
        )  # fmt: skip
        if not accumulates:
            typed = replace(typed, accumulator=typed.weight)
        work = cost(typed, spec, hyper)
        found.append(VariableCost(variable.name, ipus[variable.name], tensor.elements, work))
    return tuple(found)


def _updated(step: Step, accumulator: DType | None, held: Mapping[str, int]) -> Iterator[tuple[Variable, Updated]]:
    for variable in step.variables:
        if variable.name in step.gradients:
            tensor = step.tensors[variable.tensor]
            weight = Element.of(tensor.dtype)
            kind = weight if accumulator is None else Element.of(accumulator)
            yield variable, Updated(held.get(variable.name, tensor.elements), weight, kind)


def _update(device: Device, tensor: Updated, spec: OptimiserSpec, hyper: Hyper, *, accumulates: bool) -> Work:
    """Return the work of the family's update, with the gradient's norm where gradients are clipped."""
    compiled = weight_update(spec, hyper, accumulates=accumulates)
    if compiled.algorithm is Algorithm.SGD:
        work = update.sgd(device, tensor)
    elif compiled.algorithm in (Algorithm.SGD_COMBINED, Algorithm.SGD_SEPARATE):
        work = update.momentum(device, tensor, combined=compiled.accumulates_in_state)
    elif compiled.algorithm is Algorithm.ADAM:
        work = update.adam(device, tensor)
    elif compiled.algorithm is Algorithm.LAMB:
        work = update.lamb(device, tensor)
    else:
        work = update.rmsprop(device, tensor, centred=compiled.centred, with_momentum=compiled.has_momentum)
    if spec.max_grad_norm != float("inf"):
        n = device.spread(tensor.elements, tensor.accumulator)
        work = work.plus(reduced(device, tensor.elements, n, 1, tensor.accumulator).cycles)
    return work
