"""Pooling: a window over the image, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work

# Thread cycles for each vector and position of the window (PopLibs lib/popnn).
FORWARD, BACKWARD_MAXIMUM = 3, 5


@dataclass(frozen=True)
class Pool:
    """A pooling of `window` positions: elements of input and output on the busiest tile."""

    inputs: float
    outputs: float
    window: int
    element: Element


def forward(device: Device, pool: Pool) -> Work:
    """Return the work of a maximum or mean over windows, which reach into other tiles."""
    compute = vertices.pool(device, pool.outputs, pool.window, pool.element, FORWARD)
    cycles = Cycles(compute=compute) + exchange(device, pool.inputs * pool.element.bytes, phases=2)
    temporary = pool.inputs * pool.element.bytes
    return Work("pooling", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=pool.outputs)


def backward(device: Device, pool: Pool, *, maximum: bool) -> Work:
    """Return the work of the gradient; for a maximum, inputs and outputs are compared again."""
    per_vector = BACKWARD_MAXIMUM if maximum else FORWARD
    compute = vertices.pool(device, pool.outputs, pool.window, pool.element, per_vector)
    compute += vertices.fill(device, pool.inputs, pool.element)
    read = 2 * pool.outputs + pool.inputs if maximum else pool.outputs
    cycles = Cycles(compute=compute) + exchange(device, read * pool.element.bytes, phases=3 if maximum else 2)
    temporary = read * pool.element.bytes
    return Work("pooling", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=pool.inputs)
