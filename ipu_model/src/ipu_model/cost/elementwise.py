"""Element-wise work: an element of the result depends on one element of each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work


@dataclass(frozen=True)
class Pointwise:
    """One element-wise op on `n` elements of the busiest tile.

    `ops` is the chain of `vertices.VECTOR_OPS` that is computed for each vector; `operands` how many tensors
    of the full size it reads, `moved` how many of those lie elsewhere and are exchanged first; `broadcast`
    whether a value for each channel takes part, instead of (or besides) full tensors.
    """

    n: float
    element: Element
    ops: tuple[str, ...]
    operands: int = 1
    moved: int = 0
    broadcast: bool = False
    in_place: bool = False


def pointwise(device: Device, op: Pointwise) -> Work:
    """Return the work of an element-wise op."""
    cycles = Cycles(compute=_compute(device, op))
    if op.moved:
        cycles = cycles + exchange(device, op.moved * op.n * op.element.bytes)
    if op.broadcast:
        # A tile holds few channels of a tensor; their values are sent to all tiles that hold one of them.
        cycles = cycles + exchange(device, 0.0)
    temporary = op.moved * op.n * op.element.bytes
    return Work("elementwise", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=op.n)


def _compute(device: Device, op: Pointwise) -> float:
    if op.broadcast and op.operands <= 1 and len(op.ops) == 1:
        return vertices.broadcast_vector(device, op.n, op.element)
    if op.operands >= 2:
        overheads = vertices.BINARY_IN_PLACE if op.in_place else vertices.BINARY
    else:
        overheads = vertices.UNARY_IN_PLACE if op.in_place else vertices.UNARY
    extra = max(0, op.operands - 2)
    return vertices.elementwise(device, op.n, op.element, op.ops, overheads, extra)


def relu(device: Device, n: float, element: Element) -> Work:
    """Return the work of a rectifier in place."""
    compute = vertices.elementwise(device, n, element, ("relu",), vertices.RELU)
    return Work("elementwise", Cycles(compute=compute), outputs_on_busiest_tile=n)


def nonlinearity_gradient(device: Device, n: float, element: Element, *, moved: int = 1) -> Work:
    """Return the work of the gradient of a rectifier, sigmoid or tanh: three thread cycles a vector.

    The incoming gradient has another layout than the activation (`moved` = 1) or the same.
    """
    compute = vertices.elementwise(device, n, element, ("add",), vertices.NONLINEARITY_GRADIENT)
    cycles = Cycles(compute=compute)
    if moved:
        cycles = cycles + exchange(device, moved * n * element.bytes)
    temporary = moved * n * element.bytes
    return Work("elementwise", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=n)


def scalar(device: Device, element: Element, ops: Sequence[str] = ("add",)) -> Cycles:
    """Return the cycles of an op on a handful of elements, on one tile."""
    return Cycles(compute=vertices.elementwise(device, 1, element, tuple(ops), vertices.UNARY))
