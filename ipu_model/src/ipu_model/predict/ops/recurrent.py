"""Recurrent layers: one product for the inputs of all steps, then a loop over the steps whose code exists once.

Layers are custom ops of the captured graph (`ipu_model.capture.device_ops.recurrent_layers`). Symbols: T steps, N
sequences, I inputs, H states, P outputs of a step (P = H unless an LSTM projects its states), and G gates: 4 H in an
LSTM, 3 H in a GRU, H in a plain layer. Forward, the inputs' product is [T N, I] x [I, G]; each step adds [N, P] x
[P, G], a chain on the gates and one on the states, and the projection [N, H] x [H, P] if there is one. Backward, each
step has the chains of the gates' gradients and [N, G] x [G, P]; what is left are products over all steps at once: the
gradients of the inputs and of the weights. (PopLibs lib/popnn has the same division; the loop's chains are counted as
plain vector operations: estimated.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_model.predict.device import Device, Element, Work
from ipu_model.predict.ops.contractions import precision_of
from ipu_model.predict.ops.pointwise import Pointwise, pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import OpView, OpWork, Rule, WorkPart
from ipu_model.predict.planner import LayerPass, Precision, Problem, contraction, matrix_product

FAMILY = "recurrent"


@dataclass(frozen=True)
class CellKind:
    """Gates for each state, and the chains of vector operations of a step on each gate and on each state."""

    gates: int
    on_gates: tuple[str, ...]
    on_states: tuple[str, ...]
    on_gate_gradients: tuple[str, ...]
    on_state_gradients: tuple[str, ...]
    second_bias: bool = False


_PLAIN_GRADIENTS = ("square", "add", "add")
KINDS = {
    "lstm": CellKind(
        4, ("sigmoid",), ("add", "add", "add", "tanh", "add"), ("add", "add", "square", "add"),
        ("square", "add", "add", "add", "add"),
    ),
    # The new state's share waits for the reset gate; the last chain mixes it with the state before.
    "gru": CellKind(
        3, ("add", "sigmoid"), ("add", "add", "add"), ("add", "square", "add"), ("add", "add", "add", "add"),
        second_bias=True,
    ),
    "rnn_tanh": CellKind(1, (), ("tanh",), (), _PLAIN_GRADIENTS),
    "rnn_relu": CellKind(1, (), ("maximum",), (), ("compare", "add", "add")),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """T `steps` of N `rows` with I `inputs`, H `states` and P `outputs`."""

    kind: CellKind
    steps: int
    rows: int
    inputs: int
    states: int
    outputs: int
    element: Element

    @property
    def gates(self) -> int:
        """Gates of a sequence."""
        return self.kind.gates * self.states

    @property
    def is_projected(self) -> bool:
        """Whether the states are projected to fewer outputs."""
        return self.outputs != self.states


def input_products(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the gates' share of all inputs, bias included."""
    work = contraction(_product(layer, layer.steps * layer.rows, layer.inputs, layer.gates), device, precision)
    n = work.outputs_on_busiest_tile
    bias = pointwise(device, Pointwise(n=n, element=layer.element, ops=("add",), broadcast=True))
    return work.plus(bias.cycles)


def steps_forward(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the loop forward."""
    step = contraction(_product(layer, layer.rows, layer.outputs, layer.gates), device, precision)
    if layer.is_projected:
        step = _joined(step, contraction(_product(layer, layer.rows, layer.states, layer.outputs), device, precision))
    return _looped(device, layer, step, layer.kind.on_gates, layer.kind.on_states)


def steps_backward(device: Device, layer: Layer, precision: Precision, products: int) -> Work:
    """Return the work of the backward loop with `products` products; the first step's may be left out."""
    element = layer.element.bytes
    problem = Problem(LayerPass.DATA_GRADIENT, 1, layer.rows, layer.outputs, layer.gates, element_bytes=element)
    step = contraction(problem, device, precision)
    flops = step.flops * products
    if layer.is_projected:
        problem = Problem(LayerPass.DATA_GRADIENT, 1, layer.rows, layer.states, layer.outputs, element_bytes=element)
        projected = contraction(problem, device, precision)
        step, flops = _joined(step, projected), flops + projected.flops * layer.steps
    looped = _looped(device, layer, step, layer.kind.on_gate_gradients, layer.kind.on_state_gradients)
    return replace(looped, flops=flops)


def input_gradients(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the gradient of all inputs."""
    rows = layer.steps * layer.rows
    problem = Problem(LayerPass.DATA_GRADIENT, 1, rows, layer.inputs, layer.gates, element_bytes=layer.element.bytes)
    return contraction(problem, device, precision)


def weight_gradients(device: Device, layer: Layer, precision: Precision, ins: int) -> Work:
    """Return the work of the gradient of the gates' weight of `ins` inputs or outputs of the step before."""
    return _weight_gradient(device, layer, precision, ins, layer.gates)


def projection_gradient(device: Device, layer: Layer, precision: Precision) -> Work:
    """Return the work of the gradient of the projection."""
    return _weight_gradient(device, layer, precision, layer.states, layer.outputs)


def _weight_gradient(device: Device, layer: Layer, precision: Precision, ins: int, outs: int) -> Work:
    rows = layer.steps * layer.rows
    problem = Problem(LayerPass.WEIGHT_GRADIENT, 1, rows, ins, outs, element_bytes=layer.element.bytes)
    return contraction(problem, device, precision)


def bias_gradients(device: Device, layer: Layer) -> Work:
    """Return the work of adding the gates' gradients up."""
    elements = layer.steps * layer.rows * layer.gates
    return reduced(device, elements, device.spread(elements, layer.element), layer.gates, layer.element)


def _product(layer: Layer, rows: int, ins: int, outs: int) -> Problem:
    return matrix_product(rows, ins, outs, layer.element.bytes)


def _joined(first: Work, second: Work) -> Work:
    """Return the combined work of one product after another; only the larger of the two temporaries is live."""
    temporary = max(first.temporary_bytes, second.temporary_bytes)
    return replace(first.plus(second.cycles), flops=first.flops + second.flops, temporary_bytes=temporary)


def _looped(device: Device, layer: Layer, step: Work, of_gates: tuple[str, ...], of_states: tuple[str, ...]) -> Work:
    """Return all steps: a product, and its chains on gates and states spread over the tiles."""
    for elements, chain in ((layer.rows * layer.gates, of_gates), (layer.rows * layer.states, of_states)):
        if chain:
            n = device.spread(elements, layer.element)
            step = step.plus(pointwise(device, Pointwise(n=n, element=layer.element, ops=chain)).cycles)
    held = device.spread(layer.steps * layer.rows * layer.outputs, layer.element)
    count = layer.steps
    return replace(step.times(count), family=FAMILY, outputs_on_busiest_tile=held, repeats=max(1, count))


def _layer(op: OpView, first: int) -> Layer:
    """Return the layer whose operands x, hidden, cell, w_x and w_h start at position `first`."""
    kind = KINDS[op.kind.removesuffix("_backward")]
    source, weight = op.needed(first), op.needed(first + 4)
    steps, rows, inputs = source.shape
    gates, outputs = weight.shape
    return Layer(kind, steps, rows, inputs, gates // kind.gates, outputs, source.element)


def cost_layer(op: OpView) -> OpWork:
    """Cost one layer in one direction: the inputs of all steps, then the steps."""
    layer, precision = _layer(op, 0), precision_of(op, convolution=False)
    inputs = input_products(op.device, layer, precision)
    steps = steps_forward(op.device, layer, precision)
    return OpWork((WorkPart(inputs, "inputs"), WorkPart(steps, "steps")), op.own_layouts())


def cost_layer_gradient(op: OpView) -> OpWork:
    """Cost the gradients of weights and biases, and those of inputs and first states if they are needed."""
    layer, precision = _layer(op, 2), precision_of(op, convolution=False)
    wants_input, wants_hidden, _ = op.argument(12)
    products = layer.steps if wants_hidden else layer.steps - 1
    parts = [WorkPart(steps_backward(op.device, layer, precision, products), "steps")]
    if wants_input:
        parts.append(WorkPart(input_gradients(op.device, layer, precision), "data gradient"))
    for ins, name in ((layer.inputs, "weight gradient"), (layer.outputs, "weight gradient of states")):
        parts.append(WorkPart(weight_gradients(op.device, layer, precision, ins), name))
    if layer.is_projected:
        parts.append(WorkPart(projection_gradient(op.device, layer, precision), "weight gradient of the projection"))
    parts.append(WorkPart(bias_gradients(op.device, layer), "bias gradient"))
    if layer.kind.second_bias:
        parts.append(WorkPart(bias_gradients(op.device, layer), "bias gradient of states"))
    return OpWork(tuple(parts), op.own_layouts())


RULES = (
    Rule(tuple(KINDS), cost_layer),
    Rule(tuple(f"{name}_backward" for name in KINDS), cost_layer_gradient),
)
