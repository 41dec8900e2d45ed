"""What each trainable tensor takes: accumulation every micro-batch, the optimiser every step.

Updates are PopART's: whole-tensor passes in the element types of weight and state (willow: accumulatex,
sgd1*, adamupdaterx, adamvarupdatex). Every tensor is updated on its own, so small ones cost their vertex
calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from ipu_model.optimiser import Algorithm, Hyper, OptimiserSpec, weight_update
from ipu_model.predict import vertices
from ipu_model.predict.device import CostSettings, Cycles, Device, Element, Work
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.program import Program, remembered
from ipu_model.predict.vertices import Overheads
from ipu_model.step import Step

ACCUMULATION_PART, UPDATE_PART = "gradient accumulation", "update"


@dataclass(frozen=True)
class VariableCost:
    """The cost of accumulating (`part`) or updating a variable once, on the IPU where it is first used."""

    part: str
    variable: str
    ipu: int
    shape: tuple[int, ...]
    work: Work


@remembered
def variable_ipus(step: Step) -> dict[str, int]:
    """Return the IPU that first uses each variable, by the variable's name; 0 for unused ones."""
    users = {variable.name: step.readers.get(variable.tensor, ()) for variable in step.variables}
    return {name: ops[0].ipu if ops else 0 for name, ops in users.items()}


def variable_costs(program: Program, *, sharded: bool = False) -> tuple[VariableCost, ...]:
    """Return what accumulations and updates cost, with `sharded` on the elements that one replica works on."""
    step, spec = program.step, program.optimiser if program.training else None
    accumulated, updated = dict[str, int](), dict[str, int]()
    for variable in step.variables if sharded else ():
        elements = step.tensors[variable.tensor].elements
        own = math.ceil(elements / program.replicas)
        if program.part(elements, program.locations.accumulators) < 1:
            accumulated[variable.name] = own
        if program.is_sharded_update(elements):
            updated[variable.name] = own
    return _costs(step, program.settings, spec, program.groups, program.accumulates, accumulated, updated)


@remembered
def _costs(
    step: Step,
    settings: CostSettings,
    spec: OptimiserSpec | None,
    groups: Mapping[str, int | None],
    accumulates: bool,
    accumulated: Mapping[str, int],
    updated: Mapping[str, int],
) -> tuple[VariableCost, ...]:
    ipus = variable_ipus(step)
    # Many tensors are alike.
    add, update = (lru_cache(maxsize=None)(partial(cost, settings.device)) for cost in (accumulate, _update))
    sums, updates = [], []
    for variable in step.variables:
        if variable.name not in step.gradients:
            continue
        name, tensor = variable.name, step.tensors[variable.tensor]
        weight = Element.of(tensor.dtype)
        accumulator = Element.of(spec.accum_dtype) if spec is not None and accumulates else weight
        own = name, ipus[name], tensor.shape
        if accumulates:
            summed = Updated(accumulated.get(name, tensor.elements), weight, accumulator)
            sums.append(VariableCost(ACCUMULATION_PART, *own, add(summed)))
        if spec is not None:
            hyper = spec.hyper(groups.get(name))
            typed = Updated(
                updated.get(name, tensor.elements),
                weight,
                accumulator,
                first=Element.of(spec.velocity_dtype if spec.family.startswith("SGD") else spec.first_dtype),
                second=Element.of(spec.second_dtype),
                accumulates=accumulates,
                weight_decay=hyper.weight_decay != 0.0 or "weight_decay" in hyper.variable,
            )
            updates.append(VariableCost(UPDATE_PART, *own, update(typed, spec, hyper)))
    return (*sums, *updates)


def _update(device: Device, tensor: Updated, spec: OptimiserSpec, hyper: Hyper) -> Work:
    """Return the work of the family's update, and of clipping gradients (PopART, clipweightgradientsbynorm.cpp)."""
    compiled = weight_update(spec, hyper)
    if compiled.algorithm is Algorithm.SGD:
        work = sgd(device, tensor)
    elif compiled.algorithm in (Algorithm.SGD_COMBINED, Algorithm.SGD_SEPARATE):
        work = momentum(device, tensor, combined=compiled.accumulates_in_state)
    elif compiled.algorithm is Algorithm.ADAM:
        work = adam(device, tensor)
    elif compiled.algorithm is Algorithm.LAMB:
        work = lamb(device, tensor)
    else:
        work = rmsprop(device, tensor, centred=compiled.centred, with_momentum=compiled.has_momentum)
    if spec.max_grad_norm != float("inf"):
        n = device.spread(tensor.elements, tensor.accumulator)
        work = work.plus(reduced(device, tensor.elements, n, 1, tensor.accumulator).cycles)
        scaled = vertices.elementwise(device, n, tensor.accumulator, ("scale",), vertices.BROADCAST_SCALAR)
        work = work.plus(Cycles(compute=scaled) + device.exchange(tensor.accumulator.bytes))
    return work


# A scaled addition that scales both operands: 12 cycles more to start, a third thread cycle for each vector.
_BOTH_SCALED = Overheads(vertices.SCALED_ADD.supervisor + 12, vertices.SCALED_ADD.worker)


@dataclass(frozen=True)
class Updated:
    elements: int
    weight: Element
    accumulator: Element
    first: Element = Element.FLOAT
    second: Element = Element.FLOAT
    accumulates: bool = True
    weight_decay: bool = True


def accumulate(device: Device, tensor: Updated) -> Work:
    """Return the work of adding one micro-batch's gradient to the accumulator.

    The gradient is laid out as its contraction left it, the accumulator as the weight is.
    """
    n = device.spread(tensor.elements, tensor.weight)
    received = n * tensor.weight.bytes
    compute = vertices.scaled_add(device, n, tensor.accumulator, tensor.weight)
    cycles = Cycles(compute=compute) + device.exchange(received)
    return Work("accumulation", cycles, temporary_bytes=received, outputs_on_busiest_tile=n)


def sgd(device: Device, tensor: Updated) -> Work:
    """Return the work of plain gradient descent: weights decay and take a step; the accumulator starts again at 0."""
    n = device.spread(tensor.elements, tensor.weight)
    compute = vertices.scaled_add(device, n, tensor.weight, tensor.accumulator) + _reset(device, n, tensor)
    if tensor.weight_decay:
        compute += vertices.elementwise(device, n, tensor.weight, ("scale",), vertices.BROADCAST_SCALAR)
    return _whole(device, tensor, compute)


def momentum(device: Device, tensor: Updated, *, combined: bool) -> Work:
    """Return the work of descent with momentum; `combined`: velocity and accumulator in one tensor."""
    n = device.spread(tensor.elements, tensor.weight)
    velocity = tensor.accumulator if combined else tensor.first
    compute = vertices.scaled_add(device, n, tensor.weight, velocity)
    if combined:
        # The velocity decays after the step, and takes the weight decay of the next one.
        compute += vertices.elementwise(device, n, velocity, ("scale",), vertices.BROADCAST_SCALAR)
        compute += vertices.scaled_add(device, n, velocity, tensor.weight) if tensor.weight_decay else 0
    else:
        compute += _average(device, n, velocity, tensor.accumulator)
        compute += vertices.scaled_add(device, n, tensor.accumulator, tensor.weight) if tensor.weight_decay else 0
        compute += _reset(device, n, tensor)
    return _whole(device, tensor, compute)


def adam(device: Device, tensor: Updated) -> Work:
    """Return the work of Adam or AdamW: two moving averages, the update vector with its bias corrections, the step."""
    n = device.spread(tensor.elements, tensor.weight)
    averages = _average(device, n, tensor.first, tensor.accumulator)
    averages += _average_of_squares(device, n, tensor.second, tensor.accumulator)
    ops = ("scale", "scale", "sqrt", "add", "divide") + (("scale", "add") if tensor.weight_decay else ())
    converted = sum(2 for kind in (tensor.weight, tensor.first, tensor.second) if kind is Element.HALF)
    vector = vertices.elementwise(device, n, Element.FLOAT, ops, vertices.BINARY, 1 + converted)
    counter = vertices.elementwise(device, 1, Element.FLOAT, ("add",), vertices.UNARY)
    last = vertices.scaled_add(device, n, tensor.weight, tensor.weight) + _reset(device, n, tensor) + counter
    return _whole(device, tensor, averages + vector + device.constants.optimiser_fixed_cycles + last)


def lamb(device: Device, tensor: Updated) -> Work:
    """Return the work of LAMB: Adam's update vector, scaled by the ratio of two norms."""
    n = device.spread(tensor.elements, tensor.weight)
    norm = reduced(device, tensor.elements, n, 1, Element.FLOAT).cycles
    square = Cycles(compute=vertices.elementwise(device, n, Element.FLOAT, ("square",), vertices.UNARY))
    ratio = vertices.elementwise(device, 1, Element.FLOAT, ("sqrt", "divide", "maximum"), vertices.BINARY)
    return adam(device, tensor).plus(Cycles(compute=ratio)).plus((norm + square).times(2))


def rmsprop(device: Device, tensor: Updated, *, centred: bool, with_momentum: bool) -> Work:
    """Return the work of RMSprop: moving averages (two when centred), the update vector, the step."""
    n = device.spread(tensor.elements, tensor.weight)
    compute = _average_of_squares(device, n, tensor.second, tensor.accumulator)
    ops: tuple[str, ...] = ("sqrt", "add", "divide")
    if centred:
        compute += _average(device, n, tensor.first, tensor.accumulator)
        ops = ("square", "add", *ops)
    compute += vertices.elementwise(device, n, Element.FLOAT, ops, vertices.BINARY, 1)
    if with_momentum:
        compute += _average(device, n, tensor.first, Element.FLOAT)
    if tensor.weight_decay:
        compute += vertices.scaled_add(device, n, tensor.accumulator, tensor.weight)
    compute += vertices.scaled_add(device, n, tensor.weight, Element.FLOAT)
    return _whole(device, tensor, compute + _reset(device, n, tensor))


def _average(device: Device, n: float, state: Element, gradient: Element) -> float:
    """Return tile cycles of `state = b * state + (1 - b) * gradient`."""
    cycles = 3 if state is gradient else 5
    return vertices.call(device, _BOTH_SCALED, cycles * vertices.vectors(device, n, state))


def _average_of_squares(device: Device, n: float, state: Element, gradient: Element) -> float:
    """Return tile cycles of `state = b * state + (1 - b) * gradient ** 2`."""
    converted = 0 if state is gradient else 2
    return vertices.elementwise(device, n, state, ("square", "scale", "scale", "add"), vertices.BINARY, converted)


def _reset(device: Device, n: float, tensor: Updated) -> float:
    return vertices.fill(device, n, tensor.accumulator) if tensor.accumulates else 0.0


def _whole(device: Device, tensor: Updated, compute: float) -> Work:
    """Return the work of an update; its scalars (learning rate, factors) are sent to all tiles."""
    n = device.spread(tensor.elements, tensor.weight)
    cycles = Cycles(compute=compute) + device.exchange(0.0)
    return Work("update", cycles, temporary_bytes=4 * n, outputs_on_busiest_tile=n)
