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

import msgspec

from ipu_model.predict import vertices
from ipu_model.predict.device import Device, Element, Work
from ipu_model.predict.ops.contractions import planned
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import OpView, OpWork, costs
from ipu_model.predict.planner import LayerPass, Problem


@dataclass(frozen=True)
class CellKind:
    """Gates for each state, and the chains of vector operations of a step on each gate and on each state."""

    gates: int
    on_gates: tuple[str, ...]
    on_states: tuple[str, ...]
    on_gate_gradients: tuple[str, ...]
    on_state_gradients: tuple[str, ...]
    second_bias: bool = False


_KINDS = msgspec.convert(vertices.TABLE["recurrent"], dict[str, CellKind])


@dataclass(frozen=True)
class Layer:
    """T `steps` of N `rows` with I `inputs`, H `states`, P `outputs` and G `gates`."""

    kind: CellKind
    steps: int
    rows: int
    inputs: int
    states: int
    outputs: int
    gates: int
    element: Element


def _product(op: OpView, layer: Layer, which: LayerPass, rows: int, ins: int, outs: int) -> Work:
    problem = Problem(which, 1, rows, ins, outs, element_bytes=layer.element.bytes)
    return planned(op, problem)


def _joined(first: Work, second: Work) -> Work:
    """Return the combined work of one product after another; only the larger of the two temporaries is live."""
    temporary = max(first.temporary_bytes, second.temporary_bytes)
    return replace(first.plus(second.cycles), flops=first.flops + second.flops, temporary_bytes=temporary)


def _looped(device: Device, layer: Layer, step: Work, of_gates: tuple[str, ...], of_states: tuple[str, ...]) -> Work:
    for elements, chain in ((layer.rows * layer.gates, of_gates), (layer.rows * layer.states, of_states)):
        if chain:
            step = step.plus(pointwise(device, device.spread(elements, layer.element), layer.element, chain).cycles)
    held = device.spread(layer.steps * layer.rows * layer.outputs, layer.element)
    steps = step.times(layer.steps)
    return replace(steps, family="recurrent", outputs_on_busiest_tile=held, repeats=max(1, layer.steps))


def _layer(op: OpView, first: int) -> Layer:
    """Return the layer whose operands x, hidden, cell, w_x and w_h start at position `first`."""
    kind, source = _KINDS[op.kind.removesuffix("_backward")], op.needed(first)
    gates, outputs = op.needed(first + 4).shape
    steps, rows, inputs = source.shape
    return Layer(kind, steps, rows, inputs, gates // kind.gates, outputs, gates, source.element)


@costs(*_KINDS)
def cost_layer(op: OpView) -> OpWork:
    """Cost one layer in one direction: the inputs of all steps with their biases, then the steps."""
    layer, device = _layer(op, 0), op.device
    inputs = _product(op, layer, LayerPass.FORWARD, layer.steps * layer.rows, layer.inputs, layer.gates)
    bias = pointwise(device, inputs.outputs_on_busiest_tile, layer.element, ("add",), broadcast=True)
    step = _product(op, layer, LayerPass.FORWARD, layer.rows, layer.outputs, layer.gates)
    if layer.outputs != layer.states:
        step = _joined(step, _product(op, layer, LayerPass.FORWARD, layer.rows, layer.states, layer.outputs))
    steps = _looped(device, layer, step, layer.kind.on_gates, layer.kind.on_states)
    return OpWork({"inputs": inputs.plus(bias.cycles), "steps": steps}, op.own_layouts())


@costs(*(f"{name}_backward" for name in _KINDS))
def cost_layer_gradient(op: OpView) -> OpWork:
    """Cost the gradients of weights and biases, and those of inputs and first states if they are needed."""
    layer = _layer(op, 2)
    all_rows = layer.steps * layer.rows
    wants_input, wants_hidden, _ = op.argument(12)

    step = _product(op, layer, LayerPass.DATA_GRADIENT, layer.rows, layer.outputs, layer.gates)
    flops = step.flops * (layer.steps if wants_hidden else layer.steps - 1)
    if layer.outputs != layer.states:
        projected = _product(op, layer, LayerPass.DATA_GRADIENT, layer.rows, layer.states, layer.outputs)
        step, flops = _joined(step, projected), flops + projected.flops * layer.steps
    steps = _looped(op.device, layer, step, layer.kind.on_gate_gradients, layer.kind.on_state_gradients)
    works = {"steps": replace(steps, flops=flops)}

    if wants_input:
        works["data gradient"] = _product(op, layer, LayerPass.DATA_GRADIENT, all_rows, layer.inputs, layer.gates)
    products = {
        "weight gradient": (layer.inputs, layer.gates),
        "weight gradient of states": (layer.outputs, layer.gates),
    }
    if layer.outputs != layer.states:
        products["weight gradient of the projection"] = (layer.states, layer.outputs)
    for name, (ins, outs) in products.items():
        works[name] = _product(op, layer, LayerPass.WEIGHT_GRADIENT, all_rows, ins, outs)
    gates = all_rows * layer.gates
    n = op.device.spread(gates, layer.element)
    works["bias gradient"] = reduced(op.device, gates, n, layer.gates, layer.element)
    if layer.kind.second_bias:
        works["bias gradient of states"] = works["bias gradient"]
    return OpWork(works, op.own_layouts())
