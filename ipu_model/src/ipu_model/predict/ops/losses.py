"""Softmax and its logarithm, and losses, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.pointwise import chained
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, Rule

# Losses that compare element by element -> the chain of `vertices.VECTOR_OPS`. They reduce to a mean or a sum unless
# told otherwise.
_ELEMENTWISE: Mapping[str, tuple[str, ...]] = {
    "mse_loss": ("add", "square"),
    "smooth_l1_loss": ("add", "square", "plain"),
    "huber_loss": ("add", "square", "plain"),
    "multi_margin_loss": ("add", "maximum"),
    "soft_margin_loss": ("add", "exp", "add", "log"),
    "binary_cross_entropy": ("log", "log", "add", "add"),
    "binary_cross_entropy_with_logits": ("exp", "add", "log", "add", "add"),
}

# Their gradients, where PyTorch has an op for them.
_ELEMENTWISE_GRADIENTS: Mapping[str, tuple[str, ...]] = {
    "mse_loss_backward": ("add", "add"),
    "smooth_l1_loss_backward": ("add", "plain", "add"),
    "huber_loss_backward": ("add", "plain", "add"),
    "multi_margin_loss_backward": ("add", "plain"),
    "soft_margin_loss_backward": ("add", "exp", "divide"),
    "binary_cross_entropy_backward": ("add", "add", "divide", "add"),
}


def softmax(device: Device, elements: int, n: float, rows: int, element: Element, *, logarithm: bool) -> Work:
    """Return the work of a (log-)softmax along rows, n elements on the busiest tile.

    Maxima, exponentials and sums, and two passes that use them, with one value for each row; sums are taken in fp32.
    """
    compute = 2 * vertices.broadcast_rows(device, n, elements // rows, element)
    compute += vertices.elementwise(device, n, element, ("exp",), vertices.UNARY)
    once = ("log",) if logarithm else ("reciprocal",)
    held = device.spread(rows, Element.FLOAT)
    compute += vertices.elementwise(device, held, Element.FLOAT, once, vertices.UNARY) + vertices.cast(device, held)
    return _along_rows(device, elements, n, rows, element, compute, reductions=2)


def softmax_gradient(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of the gradient: three passes, one of them with the sum of each row."""
    compute = 2 * vertices.elementwise(device, n, element, ("add",), vertices.BINARY)
    compute += vertices.broadcast_rows(device, n, elements // rows, element)
    return _along_rows(device, elements, n, rows, element, compute, reductions=1)


def _along_rows(
    device: Device, elements: int, n: float, rows: int, element: Element, compute: float, reductions: int
) -> Work:
    cycles = Cycles(compute=compute)
    row_sum = reduced(device, elements, n, rows, element).cycles
    # What was found for each row goes back to its elements.
    back = device.exchange(device.spread(rows, Element.FLOAT) * 4)
    for _ in range(reductions):
        cycles = cycles + row_sum + back
    return Work("softmax", cycles, temporary_bytes=n * element.bytes, outputs_on_busiest_tile=n)


def negative_log_likelihood(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of picking each row's target: a one-hot mask, a product, two reductions."""
    compute = vertices.fill(device, n, element) + _encode(device, rows)
    compute += vertices.elementwise(device, n, element, ("add",), vertices.BINARY)
    labels = device.exchange(device.spread(rows, Element.INT) * 4)
    cycles = Cycles(compute=compute) + labels + reduced(device, elements, n, rows, element).cycles
    cycles = cycles + reduced(device, rows, device.spread(rows, element), 1, element).cycles
    return Work("loss", cycles, temporary_bytes=n * element.bytes, outputs_on_busiest_tile=1)


def negative_log_likelihood_gradient(device: Device, n: float, rows: int, element: Element) -> Work:
    """Return the work of the gradient: minus the scaled one-hot mask."""
    compute = vertices.fill(device, n, element) + _encode(device, rows)
    compute += vertices.elementwise(device, n, element, ("scale",), vertices.UNARY_IN_PLACE)
    cycles = Cycles(compute=compute) + device.exchange(device.spread(rows, Element.INT) * 4)
    return Work("loss", cycles, outputs_on_busiest_tile=n)


def _encode(device: Device, rows: int) -> float:
    """Return tile cycles of writing a one for each row's label."""
    return vertices.multi_slice(device, 1, device.spread(rows, Element.INT), 1, Element.HALF)


def cost_softmax(op: OpView) -> OpWork:
    """Cost a softmax or its logarithm along one dimension."""
    source = op.needed(0)
    rows = _rows(source, op.argument(1, "dim", -1))
    logarithm = "log" in op.kind
    work = softmax(op.device, source.elements, source.on_tile, rows, source.element, logarithm=logarithm)
    return op.takes(work, source.layout)


def cost_softmax_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a softmax."""
    output = op.needed(1)
    rows = _rows(output, op.argument(2, "dim", -1))
    work = softmax_gradient(op.device, output.elements, output.on_tile, rows, output.element)
    return op.takes(work, output.layout)


def cost_loss(op: OpView) -> OpWork:
    """Cost the negative log likelihood of integer targets."""
    source, target = op.needed(0), op.needed(1)
    work = negative_log_likelihood(op.device, source.elements, source.on_tile, target.elements, source.element)
    return op.takes(work)


def cost_loss_gradient(op: OpView) -> OpWork:
    """Cost the gradient of the negative log likelihood."""
    source, target = op.needed(1), op.needed(2)
    work = negative_log_likelihood_gradient(op.device, source.on_tile, target.elements, source.element)
    return op.takes(work, source.layout)


def _rows(source: Operand, dim: int) -> int:
    shape = source.shape or (1,)
    return source.elements // max(1, shape[dim])


def cost_elementwise_loss(op: OpView) -> OpWork:
    """Cost a loss of each element, and its sum or mean."""
    work, layout = chained(op, _ELEMENTWISE[op.kind])
    elements, outputs = max(operand.elements for operand in op.operands()), op.output().elements
    if outputs >= elements:
        return op.takes(work, layout)
    return op.takes(reduced(op.device, elements, layout.on_tile, outputs, op.element).plus(work.cycles))


def cost_elementwise_loss_gradient(op: OpView) -> OpWork:
    """Cost the gradient of such a loss."""
    return op.takes(*chained(op, _ELEMENTWISE_GRADIENTS[op.kind]))


RULES = (
    Rule(("_softmax", "_safe_softmax", "_log_softmax"), cost_softmax),
    Rule(("_softmax_backward_data", "_log_softmax_backward_data"), cost_softmax_gradient),
    Rule(("nll_loss_forward", "nll_loss2d_forward"), cost_loss),
    Rule(("nll_loss_backward", "nll_loss2d_backward"), cost_loss_gradient),
    Rule(tuple(_ELEMENTWISE), cost_elementwise_loss),
    Rule(tuple(_ELEMENTWISE_GRADIENTS), cost_elementwise_loss_gradient),
)
