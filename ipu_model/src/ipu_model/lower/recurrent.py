"""Rules for recurrent layers: ops of a captured graph of our own, see `ipu_model.capture.device_ops.lstm`."""

from __future__ import annotations

from ipu_model.cost import recurrent
from ipu_model.cost.recurrent import Layer
from ipu_model.lower.contractions import precision_of
from ipu_model.lower.result import Layout
from ipu_model.lower.view import OpView, Part, Result, Rule


def rules() -> dict[str, Rule]:
    """Return the rules of an LSTM's layer and of its gradient."""
    return {"lstm": lower_lstm, "lstm_backward": lower_lstm_gradient}


def _layer(op: OpView, first: int) -> Layer:
    source, weight = op.needed(first), op.needed(first + 4)
    steps, rows, inputs = source.shape
    return Layer(steps, rows, inputs, weight.shape[1], source.element)


def lower_lstm(op: OpView) -> Result:
    """Cost one layer in one direction: the inputs of all steps, then the steps."""
    layer, precision = _layer(op, 0), precision_of(op, convolution=False)
    inputs = recurrent.input_products(op.device, layer, precision)
    steps = recurrent.steps_forward(op.device, layer, precision)
    return Result((Part(inputs, "inputs"), Part(steps, "steps")), _layouts(op))


def lower_lstm_gradient(op: OpView) -> Result:
    """Cost the gradients that are asked for: of inputs and first states, and always of weights and bias."""
    layer, precision = _layer(op, 2), precision_of(op, convolution=False)
    wants_input, wants_hidden, _ = op.argument(11)
    products = layer.steps if wants_hidden else layer.steps - 1
    parts = [Part(recurrent.steps_backward(op.device, layer, precision, products), "steps")]
    if wants_input:
        parts.append(Part(recurrent.input_gradients(op.device, layer, precision), "data gradient"))
    for ins, name in ((layer.inputs, "weight gradient"), (layer.states, "weight gradient of states")):
        parts.append(Part(recurrent.weight_gradients(op.device, layer, precision, ins), name))
    parts.append(Part(recurrent.bias_gradients(op.device, layer), "bias gradient"))
    return Result(tuple(parts), _layouts(op))


def _layouts(op: OpView) -> tuple[Layout | None, ...]:
    return tuple(op.own_layout(index=index) if output is not None else None for index, output in enumerate(op.outputs))
