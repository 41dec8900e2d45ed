"""What each trainable tensor takes: accumulation every micro-batch, the optimiser every step.

Updates are PopART's: whole-tensor passes in the element types of weight and state (willow: accumulatex,
sgd1*, adamupdaterx, adamvarupdatex). Every tensor is updated on its own, so small ones cost their vertex
calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.reduction import reduced
from ipu_model.cost.vertices import Overheads
from ipu_model.cost.work import Cycles, Work

# A scaled addition that scales both operands: 12 cycles more to start, a third thread cycle for each vector.
_BOTH_SCALED = Overheads(vertices.SCALED_ADD.supervisor + 12, vertices.SCALED_ADD.worker)


@dataclass(frozen=True)
class Updated:
    """One trainable tensor: its elements, and the element types of weight, accumulator and moments."""

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
    compute = vertices.scaled_add(device, n, tensor.accumulator, tensor.weight)
    cycles = Cycles(compute=compute) + exchange(device, n * tensor.weight.bytes)
    temporary = n * tensor.weight.bytes
    return Work("accumulation", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=n)


def sgd(device: Device, tensor: Updated) -> Work:
    """Return the work of plain gradient descent: weights decay and take a step."""
    n = device.spread(tensor.elements, tensor.weight)
    compute = _step(device, n, tensor, tensor.accumulator)
    if tensor.weight_decay:
        compute += vertices.elementwise(device, n, tensor.weight, ("scale",), vertices.BROADCAST_SCALAR)
    return _update(device, tensor, compute)


def momentum(device: Device, tensor: Updated, *, combined: bool) -> Work:
    """Return the work of descent with momentum; `combined`: velocity and accumulator in one tensor."""
    n = device.spread(tensor.elements, tensor.weight)
    velocity = tensor.accumulator if combined else tensor.first
    compute = _step(device, n, tensor, velocity)
    if combined:
        # The velocity decays after the step, and takes the weight decay of the next one.
        compute += vertices.elementwise(device, n, velocity, ("scale",), vertices.BROADCAST_SCALAR)
        compute += vertices.scaled_add(device, n, velocity, tensor.weight) if tensor.weight_decay else 0
    else:
        compute += _average(device, n, velocity, tensor.accumulator)
        compute += vertices.scaled_add(device, n, tensor.accumulator, tensor.weight) if tensor.weight_decay else 0
        compute += _reset(device, n, tensor)
    return _update(device, tensor, compute)


def adam(device: Device, tensor: Updated) -> Work:
    """Return the work of Adam or AdamW: two moving averages, the update vector, the step."""
    return _update(device, tensor, _moments(device, tensor) + _last_step(device, tensor))


def lamb(device: Device, tensor: Updated) -> Work:
    """Return the work of LAMB: Adam's update vector, scaled by the ratio of two norms."""
    n = device.spread(tensor.elements, tensor.weight)
    norm = reduced(device, tensor.elements, n, 1, Element.FLOAT).cycles
    square = Cycles(compute=vertices.elementwise(device, n, Element.FLOAT, ("square",), vertices.UNARY))
    ratio = vertices.elementwise(device, 1, Element.FLOAT, ("sqrt", "divide", "maximum"), vertices.BINARY)
    work = _update(device, tensor, _moments(device, tensor) + _last_step(device, tensor) + ratio)
    return work.plus((norm + square).times(2))


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
    return _update(device, tensor, compute + _step(device, n, tensor, Element.FLOAT) + _reset(device, n, tensor))


def _moments(device: Device, tensor: Updated) -> float:
    """Return tile cycles of the moving averages and of the update vector, bias corrections included."""
    n = device.spread(tensor.elements, tensor.weight)
    averages = _average(device, n, tensor.first, tensor.accumulator)
    averages += _average_of_squares(device, n, tensor.second, tensor.accumulator)
    ops = ("scale", "scale", "sqrt", "add", "divide") + (("scale", "add") if tensor.weight_decay else ())
    converted = sum(2 for kind in (tensor.weight, tensor.first, tensor.second) if kind is Element.HALF)
    vector = vertices.elementwise(device, n, Element.FLOAT, ops, vertices.BINARY, 1 + converted)
    return averages + vector + device.constants.optimiser_fixed_cycles


def _last_step(device: Device, tensor: Updated) -> float:
    n = device.spread(tensor.elements, tensor.weight)
    counter = vertices.elementwise(device, 1, Element.FLOAT, ("add",), vertices.UNARY)
    return _step(device, n, tensor, tensor.weight) + _reset(device, n, tensor) + counter


def _average(device: Device, n: float, state: Element, gradient: Element) -> float:
    """Return tile cycles of `state = b * state + (1 - b) * gradient`."""
    cycles = 3 if state is gradient else 5
    return vertices.call(device, _BOTH_SCALED, cycles * vertices.vectors(device, n, state))


def _average_of_squares(device: Device, n: float, state: Element, gradient: Element) -> float:
    """Return tile cycles of `state = b * state + (1 - b) * gradient ** 2`."""
    converted = 0 if state is gradient else 2
    return vertices.elementwise(device, n, state, ("square", "scale", "scale", "add"), vertices.BINARY, converted)


def _step(device: Device, n: float, tensor: Updated, update: Element) -> float:
    """Return tile cycles of `weight -= rate * update`."""
    return vertices.scaled_add(device, n, tensor.weight, update)


def _reset(device: Device, n: float, tensor: Updated) -> float:
    return vertices.fill(device, n, tensor.accumulator) if tensor.accumulates else 0.0


def _update(device: Device, tensor: Updated, compute: float) -> Work:
    """Return the work of an update; its scalars (learning rate, factors) are sent to all tiles."""
    n = device.spread(tensor.elements, tensor.weight)
    cycles = Cycles(compute=compute) + exchange(device, 0.0)
    return Work("update", cycles, temporary_bytes=4 * n, outputs_on_busiest_tile=n)
