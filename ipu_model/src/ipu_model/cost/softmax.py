"""Softmax and its logarithm, and the losses that are ops of their own, forward and backward."""

from __future__ import annotations

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.reduction import reduced
from ipu_model.cost.work import Cycles, Work


def softmax(device: Device, elements: int, n: float, rows: int, element: Element, *, logarithm: bool) -> Work:
    """Return the work of a (log-)softmax along rows, n elements on the busiest tile.

    Maxima, exponentials and sums, and two passes that use them; sums are taken in fp32.
    """
    passes = (("add",), ("exp",), ("add",))
    compute = sum(vertices.elementwise(device, n, element, ops, vertices.UNARY) for ops in passes)
    once = ("log",) if logarithm else ("reciprocal",)
    held = device.spread(rows, Element.FLOAT)
    compute += vertices.elementwise(device, held, Element.FLOAT, once, vertices.UNARY) + vertices.cast(device, held)
    return _along_rows(device, elements, n, rows, element, compute, reductions=2)


def softmax_gradient(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of the gradient: three passes and the sum of each row."""
    compute = 3 * vertices.elementwise(device, n, element, ("add",), vertices.BINARY)
    return _along_rows(device, elements, n, rows, element, compute, reductions=1)


def _along_rows(
    device: Device, elements: int, n: float, rows: int, element: Element, compute: float, reductions: int
) -> Work:
    cycles = Cycles(compute=compute)
    row_sum = reduced(device, elements, n, rows, element).cycles
    # What was found for each row goes back to its elements.
    back = exchange(device, device.spread(rows, Element.FLOAT) * 4)
    for _ in range(reductions):
        cycles = cycles + row_sum + back
    return Work("softmax", cycles, temporary_bytes=n * element.bytes, outputs_on_busiest_tile=n)


def negative_log_likelihood(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of picking each row's target: a one-hot mask, a product, two reductions."""
    compute = vertices.fill(device, n, element) + _encode(device, rows)
    compute += vertices.elementwise(device, n, element, ("add",), vertices.BINARY)
    labels = exchange(device, device.spread(rows, Element.INT) * 4)
    cycles = Cycles(compute=compute) + labels + reduced(device, elements, n, rows, element).cycles
    cycles = cycles + reduced(device, rows, device.spread(rows, element), 1, element).cycles
    return Work("loss", cycles, temporary_bytes=n * element.bytes, outputs_on_busiest_tile=1)


def negative_log_likelihood_gradient(device: Device, n: float, rows: int, element: Element) -> Work:
    """Return the work of the gradient: minus the scaled one-hot mask."""
    compute = vertices.fill(device, n, element) + _encode(device, rows)
    compute += vertices.elementwise(device, n, element, ("scale",), vertices.UNARY_IN_PLACE)
    cycles = Cycles(compute=compute) + exchange(device, device.spread(rows, Element.INT) * 4)
    return Work("loss", cycles, outputs_on_busiest_tile=n)


def _encode(device: Device, rows: int) -> float:
    """Return tile cycles of writing a one for each row's label."""
    return vertices.multi_slice(device, 1, device.spread(rows, Element.INT), 1, Element.HALF)
