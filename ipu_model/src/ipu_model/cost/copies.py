"""Work that only moves data: rearranging layouts, transposing weights, casts, fills, copies."""

from __future__ import annotations

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work


def rearrange(device: Device, n: float, element: Element) -> Cycles:
    """Return the cycles of giving n elements of the busiest tile another order, across and inside tiles."""
    constants, moved = device.constants, n * element.bytes
    compute = constants.layout_copy_cycles_per_byte * moved + constants.layout_copy_fixed_cycles
    return Cycles(compute=compute) + exchange(device, moved)


def weight_transpose(device: Device, weight_bytes: float) -> Cycles:
    """Return the cycles of transposing a weight tensor of so many bytes, spread over all tiles."""
    share = weight_bytes / device.chip.tiles
    compute = device.constants.weight_transpose_cycles_per_byte * share
    return Cycles(compute=compute) + exchange(device, share)


def rearranged(device: Device, n: float, element: Element) -> Work:
    """Return the work of a transposed copy: n elements on the busiest tile change places."""
    return Work("copy", rearrange(device, n, element), temporary_bytes=n * element.bytes, outputs_on_busiest_tile=n)


def cast(device: Device, n: float, source: Element, target: Element) -> Work:
    """Return the work of converting n elements of the busiest tile to another type."""
    if {source, target} == {Element.HALF, Element.FLOAT}:
        compute = vertices.cast(device, n)
    else:
        scalar = source if target.is_floating else target
        compute = vertices.elementwise(device, n, scalar, ("copy",), vertices.CAST)
    return Work("cast", Cycles(compute=compute), outputs_on_busiest_tile=n)


def filled(device: Device, n: float, element: Element) -> Work:
    """Return the work of writing a constant to n elements of the busiest tile."""
    return Work("copy", Cycles(compute=vertices.fill(device, n, element)), outputs_on_busiest_tile=n)


def copied(device: Device, n: float, element: Element, *, moved: float = 0.0) -> Work:
    """Return the work of copying n elements on the busiest tile, `moved` of them from other tiles."""
    cycles = Cycles(compute=vertices.copy(device, n, element))
    if moved:
        cycles = cycles + exchange(device, moved * element.bytes)
    return Work("copy", cycles, temporary_bytes=moved * element.bytes, outputs_on_busiest_tile=n)
