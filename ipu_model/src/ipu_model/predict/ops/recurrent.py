"""A layer of an LSTM: one product for the inputs of all steps, then a loop over the steps whose code exists once.

Layers are custom ops of the captured graph (`ipu_model.capture.device_ops.lstm`). Symbols: T steps, N sequences, I
inputs, H states. Forward, the inputs' product is [T N, I] x [I, 4 H]; each step adds [N, H] x [H, 4 H], takes three
sigmoids and a tanh of the gates and two more chains on the states. Backward, each step has the chains of the gates'
gradients and [N, 4 H] x [4 H, H]; what is left are products over all steps at once: the gradients of the inputs and of
both weights. (PopLibs lib/popnn has the same division; the loop's chains are counted as plain vector operations:
estimated.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_model.predict.device import Device, Element, Work
from ipu_model.predict.ops.contractions import precision_of
from ipu_model.predict.ops.pointwise import Pointwise, pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import OpView, OpWork, Part, Rule
from ipu_model.predict.planner import Pass, Precision, Problem, contraction, matrix_product

FAMILY = "recurrent"
# On each gate; then on each state: new cell, and new hidden state.
_GATES, _STATES = ("sigmoid",), ("add", "add", "add", "tanh", "add")
_GATE_GRADIENTS, _STATE_GRADIENTS = ("add", "add", "square", "add"), ("square", "add", "add", "add", "add")


@dataclass(frozen=True)
class Layer:
    """T `steps` of N `rows` with I `inputs` and H `states`."""

    steps: int
    rows: int
    inputs: int
    states: int
    element: Element

    @property
    def gates(self) -> int:
        """Gates of a sequence."""
        return 4 * self.states


def input_products(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the gates' share of all inputs, bias included."""
    work = contraction(_product(layer, layer.steps * layer.rows, layer.inputs, layer.gates), device, precision)
    n = work.outputs_on_busiest_tile
    bias = pointwise(device, Pointwise(n=n, element=layer.element, ops=("add",), broadcast=True))
    return work.plus(bias.cycles)


def steps_forward(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the loop forward."""
    step = contraction(_product(layer, layer.rows, layer.states, layer.gates), device, precision)
    return _looped(device, layer, step, _GATES, _STATES, layer.steps)


def steps_backward(device: Device, layer: Layer, precision: Precision, products: int) -> Work:
    """Return the work of the loop backward; the product of the first step may be left out."""
    problem = Problem(Pass.DATA_GRADIENT, 1, layer.rows, layer.states, layer.gates, element_bytes=layer.element.bytes)
    step = contraction(problem, device, precision)
    looped = _looped(device, layer, step, _GATE_GRADIENTS, _STATE_GRADIENTS, layer.steps)
    return replace(looped, flops=step.flops * products)


def input_gradients(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the gradient of all inputs."""
    rows = layer.steps * layer.rows
    problem = Problem(Pass.DATA_GRADIENT, 1, rows, layer.inputs, layer.gates, element_bytes=layer.element.bytes)
    return contraction(problem, device, precision)


def weight_gradients(device: Device, layer: Layer, precision: Precision, ins: int) -> Work:
    """Return the work of the gradient of the weight of `ins` inputs or states."""
    rows = layer.steps * layer.rows
    problem = Problem(Pass.WEIGHT_GRADIENT, 1, rows, ins, layer.gates, element_bytes=layer.element.bytes)
    return contraction(problem, device, precision)


def bias_gradients(device: Device, layer: Layer) -> Work:
    """Return the work of adding the gates' gradients up."""
    elements = layer.steps * layer.rows * layer.gates
    return reduced(device, elements, device.spread(elements, layer.element), layer.gates, layer.element)


def _product(layer: Layer, rows: int, ins: int, outs: int) -> Problem:
    return matrix_product(rows, ins, outs, layer.element.bytes)


def _looped(
    device: Device, layer: Layer, step: Work, of_gates: tuple[str, ...], of_states: tuple[str, ...], count: int
) -> Work:
    """Return `count` steps: a product, and its chains on gates and states spread over the tiles."""
    for elements, chain in ((layer.rows * layer.gates, of_gates), (layer.rows * layer.states, of_states)):
        n = device.spread(elements, layer.element)
        step = step.plus(pointwise(device, Pointwise(n=n, element=layer.element, ops=chain)).cycles)
    held = device.spread(layer.steps * layer.rows * layer.states, layer.element)
    return replace(step.times(count), family=FAMILY, outputs_on_busiest_tile=held, repeats=max(1, count))


def _layer(op: OpView, first: int) -> Layer:
    source, weight = op.needed(first), op.needed(first + 4)
    steps, rows, inputs = source.shape
    return Layer(steps, rows, inputs, weight.shape[1], source.element)


def cost_lstm(op: OpView) -> OpWork:
    """Cost one layer in one direction: the inputs of all steps, then the steps."""
    layer, precision = _layer(op, 0), precision_of(op, convolution=False)
    inputs = input_products(op.device, layer, precision)
    steps = steps_forward(op.device, layer, precision)
    return OpWork((Part(inputs, "inputs"), Part(steps, "steps")), op.own_layouts())


def cost_lstm_gradient(op: OpView) -> OpWork:
    """Cost the gradients that are asked for: of inputs and first states, and always of weights and bias."""
    layer, precision = _layer(op, 2), precision_of(op, convolution=False)
    wants_input, wants_hidden, _ = op.argument(11)
    products = layer.steps if wants_hidden else layer.steps - 1
    parts = [Part(steps_backward(op.device, layer, precision, products), "steps")]
    if wants_input:
        parts.append(Part(input_gradients(op.device, layer, precision), "data gradient"))
    for ins, name in ((layer.inputs, "weight gradient"), (layer.states, "weight gradient of states")):
        parts.append(Part(weight_gradients(op.device, layer, precision, ins), name))
    parts.append(Part(bias_gradients(op.device, layer), "bias gradient"))
    return OpWork(tuple(parts), op.own_layouts())


RULES = (Rule(("lstm",), cost_lstm), Rule(("lstm_backward",), cost_lstm_gradient))
