"""Convolutions, matrix products and recurrent layers, forward and backward: the planner solves each as a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ipu_model.predict import planner, vertices
from ipu_model.predict.device import Device, Element, Work
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import Layout, Operand, OpView, OpWork, costs
from ipu_model.predict.planner import INPUTS, WEIGHTS, LayerPass, Problem
from ipu_model.step import Argument, Ref, Step, Tensor

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot")
CONTRACTIONS = ("convolution", *PRODUCTS)

# The parts of an op that makes the gradients of a convolution, in the order of its results.
GRADIENT_PARTS = ("data gradient", "weight gradient", "bias gradient")
DATA_GRADIENT, WEIGHT_GRADIENT, BIAS_GRADIENT = GRADIENT_PARTS


def planned(op: OpView, problem: Problem, *, convolution: bool = False) -> Work:
    """Return the fastest plan, with partials and memory proportion of the op's own hints, or else of the program."""
    settings, together = op.settings, op.op.hints.multi_convolution
    half = settings.half_partials
    if convolution and settings.half_partials_of_convolutions is not None:
        half = settings.half_partials_of_convolutions
    if together is not None and together.partials_type is not None:
        half = together.partials_type == "half"
    return planner.contraction(problem, op.device, half, op.proportion)


@costs("convolution")
def cost_convolution(op: OpView) -> OpWork:
    """Cost a convolution; a transposed one is the data gradient of the convolution that it transposes."""
    source, weight = op.needed(0), op.needed(1)
    transposed = bool(op.argument(6))
    layer = _layer(source.tensor, op.output(), weight.tensor, op.op.arguments[3:9], element_bytes=_bytes(source))
    which = LayerPass.DATA_GRADIENT if transposed else LayerPass.FORWARD
    work = planned(op, replace(layer, which=which), convolution=True)
    return _with_bias(op, work, has_bias=op.tensor(2) is not None)


def _with_bias(op: OpView, work: Work, *, has_bias: bool) -> OpWork:
    layout = op.own_layout(work.outputs_on_busiest_tile)
    parts = {"": work}
    if has_bias:
        parts["bias"] = pointwise(op.device, layout.on_tile, op.element, ("add",), broadcast=True)
    return OpWork(parts, (layout,))


@costs("convolution_backward")
def cost_convolution_backward(op: OpView) -> OpWork:
    gradient, source, weight = op.needed(0), op.needed(1), op.needed(2)
    transposed = bool(op.argument(7))
    layer = _layer(source.tensor, gradient.tensor, weight.tensor, op.op.arguments[4:10], element_bytes=_bytes(source))
    *wanted, wants_bias = op.argument(10)
    passes = (LayerPass.FORWARD if transposed else LayerPass.DATA_GRADIENT, LayerPass.WEIGHT_GRADIENT)
    parts: dict[str, Work] = {}
    layouts: list[Layout | None] = [None, None, None]
    for index, which in enumerate(passes):
        if wanted[index]:
            work = planned(op, replace(layer, which=which), convolution=True)
            parts[GRADIENT_PARTS[index]] = work
            layouts[index] = op.own_layout(work.outputs_on_busiest_tile, index)
    if wants_bias:
        outputs = op.output(2).elements
        parts[BIAS_GRADIENT] = reduced(op.device, gradient.elements, gradient.on_tile, outputs, gradient.element)
        layouts[2] = op.own_layout(index=2)
    return OpWork(parts, tuple(layouts))


def _layer(source: Tensor, target: Tensor, weight: Tensor, settings: Sequence[Argument], element_bytes: int) -> Problem:
    """Return the forward problem of a layer; of a transposed one, that of the convolution it transposes.

    `settings` are stride, padding, dilation, transposed, output padding and groups.
    """
    stride, _, dilation, transposed, _, groups = settings
    assert isinstance(groups, int), f"groups of a convolution are fixed when compiling; got {groups!r}"
    # Weights of a transposed convolution are [in, out / groups, ...]: those of the convolution it transposes.
    first, per_group = weight.shape[0] // groups, weight.shape[1]
    image, result = (target, source) if transposed else (source, target)
    return Problem(
        which=LayerPass.FORWARD,
        groups=groups,
        batch=source.shape[0],
        in_channels=per_group,
        out_channels=first,
        image=_flat(image.shape[2:], math.prod),
        result=_flat(result.shape[2:], math.prod),
        kernel=_flat(weight.shape[2:], math.prod),
        stride=_flat(stride, max),
        dilation=_flat(dilation, max),
        element_bytes=element_bytes,
    )


def _flat(sizes: Argument, join: Callable[[Sequence[int]], int]) -> tuple[int, int]:
    """Return (rows, columns) of one, two or three dimensions; leading ones are joined."""
    assert isinstance(sizes, tuple)
    *leading, last = (size for size in sizes if isinstance(size, int))
    return join(leading) if leading else 1, last


# Copies in PyTorch's graph that exist to make the operands of a batched product contiguous.
COPIES_FOR_PRODUCTS = ("clone", "contiguous")

# poptorch.MatMulSerializationMode: of [m, n] x [n, p], its modes slice m, n and p.
_SERIAL_AXES = {"input_channels": "batch", "reducing_dim": "in", "output_channels": "out"}


@costs(*PRODUCTS, words="matrix product")
def cost_product(op: OpView) -> OpWork:
    added = op.kind in ("addmm", "baddbmm", "addmv")
    left, right = op.needed(int(added)), op.needed(int(added) + 1)
    problem, serialised = _product(op, left, right), op.op.hints.serialisation
    if serialised is None or serialised.factor <= 1 or serialised.mode not in _SERIAL_AXES:
        work = planned(op, problem)
    else:
        axis, count = _SERIAL_AXES[serialised.mode], serialised.factor
        step = planned(op, planner.slice_of(problem, axis, count))
        work = planner.repeated(problem, step, axis, count, op.device)
    return _with_bias(op, work, has_bias=added and op.argument(3, "beta", 1) != 0)


def _product(op: OpView, left: Operand, right: Operand) -> Problem:
    """Return the product as the pass of a layer: with a weight as operand, or making its gradient."""
    a, b = left.shape, right.shape
    groups = a[0] if len(a) == 3 else 1
    m, k = (1, a[0]) if len(a) == 1 else a[-2:]
    n = b[-1] if len(b) > 1 else 1
    element_bytes = max(_bytes(left), _bytes(right))
    has_weight = left.tensor.of_weight or right.tensor.of_weight
    if op.is_backward and len(a) < 3 and has_weight:
        return Problem(LayerPass.DATA_GRADIENT, 1, m, n, k, element_bytes=element_bytes)
    # The operands of a product of activations with the reduced dimension outside: they must be turned.
    outside = {INPUTS: not _is_innermost(op, left.tensor, -1), WEIGHTS: not _is_innermost(op, right.tensor, -2)}
    transposed = () if has_weight else tuple(operand for operand, turned in outside.items() if turned)
    if op.is_backward and len(a) < 3 and len(transposed) == 2:
        # Activations come from the forward pass: their columns are the layer's input channels.
        maker = op.step.maker(left.tensor.name)
        ins, outs = (n, m) if maker is not None and maker.is_backward else (m, n)
        return Problem(LayerPass.WEIGHT_GRADIENT, 1, k, ins, outs, element_bytes=element_bytes)
    return planner.matrix_product(m, k, n, element_bytes, groups=groups, transposed=transposed)


def _is_innermost(op: OpView, tensor: Tensor, dim: int) -> bool:
    """Whether neighbours along `dim`, one of the last two, are neighbours in memory; those of a vector are.

    PyTorch copies the operands of a batched product to make them contiguous; the device has no such copy, and takes
    them as they lay before it.
    """
    if len(tensor.shape) < 2 or tensor.shape[dim] == 1 or tensor.stride[dim] == 0:
        return True
    stride = tensor.stride[dim]
    before, last = _before_copies(op.step, tensor), -1 if stride == 1 else -2
    if before is not None and len(before.shape) > 1 and before.shape[last] == tensor.shape[dim]:
        return before.stride[last] == 1
    return stride == 1


def _before_copies(step: Step, tensor: Tensor) -> Tensor | None:
    """Return the tensor that a copy for products, or a reshape of it, was made from; `None` if it is no such copy."""
    maker = step.maker(tensor.name)
    while maker is not None and maker.kind in (*COPIES_FOR_PRODUCTS, "_unsafe_view"):
        source = maker.arguments[0]
        assert isinstance(source, Ref)
        if maker.kind in COPIES_FOR_PRODUCTS:
            return step.tensors[source]
        maker = step.maker(source)
    return None


def _bytes(operand: Operand) -> int:
    return 2 if operand.element.bytes == 2 else 4


# ------------------------------------------------------------------------------ recurrent layers
#
# One product for the inputs of all steps, then a loop over the steps whose code exists once. Layers are custom ops of
# the captured graph (`ipu_model.capture.device_ops.recurrent_layers`). Symbols: T steps, N sequences, I inputs, H
# states, P outputs of a step (P = H unless an LSTM projects its states), and G gates: 4 H in an LSTM, 3 H in a GRU, H
# in a plain layer. Forward, the inputs' product is [T N, I] x [I, G]; each step adds [N, P] x [P, G], a chain on the
# gates and one on the states, and the projection [N, H] x [H, P] if there is one. Backward, each step has the chains
# of the gates' gradients and [N, G] x [G, P]; what is left are products over all steps at once: the gradients of the
# inputs and of the weights. (PopLibs lib/popnn has the same division; the loop's chains are counted as plain vector
# operations: estimated.)


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
class Recurrent:
    """T `steps` of N `rows` with I `inputs`, H `states`, P `outputs` and G `gates`."""

    kind: CellKind
    steps: int
    rows: int
    inputs: int
    states: int
    outputs: int
    gates: int
    element: Element


def _cell_product(op: OpView, layer: Recurrent, which: LayerPass, rows: int, ins: int, outs: int) -> Work:
    return planned(op, Problem(which, 1, rows, ins, outs, element_bytes=layer.element.bytes))


def _joined(first: Work, second: Work) -> Work:
    """Return the combined work of one product after another; only the larger of the two temporaries is live."""
    temporary = max(first.temporary_bytes, second.temporary_bytes)
    return replace(first.plus(second.cycles), flops=first.flops + second.flops, temporary_bytes=temporary)


def _looped(
    device: Device, layer: Recurrent, step: Work, of_gates: tuple[str, ...], of_states: tuple[str, ...]
) -> Work:
    for elements, chain in ((layer.rows * layer.gates, of_gates), (layer.rows * layer.states, of_states)):
        if chain:
            step = step.plus(pointwise(device, device.spread(elements, layer.element), layer.element, chain).cycles)
    held = device.spread(layer.steps * layer.rows * layer.outputs, layer.element)
    steps = step.times(layer.steps)
    return replace(steps, family="recurrent", outputs_on_busiest_tile=held, repeats=max(1, layer.steps))


def _recurrent_layer(op: OpView, first: int) -> Recurrent:
    """Return the layer whose operands x, hidden, cell, w_x and w_h start at position `first`."""
    kind, source = _KINDS[op.kind.removesuffix("_backward")], op.needed(first)
    gates, outputs = op.needed(first + 4).shape
    steps, rows, inputs = source.shape
    return Recurrent(kind, steps, rows, inputs, gates // kind.gates, outputs, gates, source.element)


@costs(*_KINDS)
def cost_layer(op: OpView) -> OpWork:
    """Cost one layer in one direction: the inputs of all steps with their biases, then the steps."""
    layer, device = _recurrent_layer(op, 0), op.device
    inputs = _cell_product(op, layer, LayerPass.FORWARD, layer.steps * layer.rows, layer.inputs, layer.gates)
    bias = pointwise(device, inputs.outputs_on_busiest_tile, layer.element, ("add",), broadcast=True)
    step = _cell_product(op, layer, LayerPass.FORWARD, layer.rows, layer.outputs, layer.gates)
    if layer.outputs != layer.states:
        step = _joined(step, _cell_product(op, layer, LayerPass.FORWARD, layer.rows, layer.states, layer.outputs))
    steps = _looped(device, layer, step, layer.kind.on_gates, layer.kind.on_states)
    return OpWork({"inputs": inputs.plus(bias.cycles), "steps": steps}, op.own_layouts())


@costs(*(f"{name}_backward" for name in _KINDS))
def cost_layer_gradient(op: OpView) -> OpWork:
    """Cost the gradients of weights and biases, and those of inputs and first states if they are needed."""
    layer = _recurrent_layer(op, 2)
    all_rows = layer.steps * layer.rows
    wants_input, wants_hidden, _ = op.argument(12)

    step = _cell_product(op, layer, LayerPass.DATA_GRADIENT, layer.rows, layer.outputs, layer.gates)
    flops = step.flops * (layer.steps if wants_hidden else layer.steps - 1)
    if layer.outputs != layer.states:
        projected = _cell_product(op, layer, LayerPass.DATA_GRADIENT, layer.rows, layer.states, layer.outputs)
        step, flops = _joined(step, projected), flops + projected.flops * layer.steps
    steps = _looped(op.device, layer, step, layer.kind.on_gate_gradients, layer.kind.on_state_gradients)
    works = {"steps": replace(steps, flops=flops)}

    if wants_input:
        works["data gradient"] = _cell_product(op, layer, LayerPass.DATA_GRADIENT, all_rows, layer.inputs, layer.gates)
    products = {
        "weight gradient": (layer.inputs, layer.gates),
        "weight gradient of states": (layer.outputs, layer.gates),
    }
    if layer.outputs != layer.states:
        products["weight gradient of the projection"] = (layer.states, layer.outputs)
    for name, (ins, outs) in products.items():
        works[name] = _cell_product(op, layer, LayerPass.WEIGHT_GRADIENT, all_rows, ins, outs)
    gates = all_rows * layer.gates
    n = op.device.spread(gates, layer.element)
    works["bias gradient"] = reduced(op.device, gates, n, layer.gates, layer.element)
    if layer.kind.second_bias:
        works["bias gradient of states"] = works["bias gradient"]
    return OpWork(works, op.own_layouts())
