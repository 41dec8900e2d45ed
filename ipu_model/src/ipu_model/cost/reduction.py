"""Sums, means, maxima over dimensions: first on each tile, then in stages over the tiles."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ipu_model.cost import candidates, vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work

# Channels that lie together on a tile: the layout that contractions leave, and the least that a reduction
# keeps.
GROUP = 8


def reduced(device: Device, elements: int, n: float, outputs: int, element: Element) -> Work:
    """Return the work of reducing `elements`, `n` of them on the busiest tile, to `outputs` results."""
    local = results_on_tile(elements, n, outputs)
    compute = vertices.reduce_rows(device, n, element)
    cycles = Cycles(compute=compute) + combined(device, local, depth_of(device, local, n, elements, outputs))
    held = device.spread(outputs, element)
    return Work("reduction", cycles, temporary_bytes=4 * local, outputs_on_busiest_tile=held)


def arg_reduced(device: Device, n: float, outputs: int) -> Work:
    """Return the work of finding the places of maxima: on each tile, then over the tiles of a row."""
    compute = vertices.arg_reduce(device, n)
    held = device.spread(outputs, Element.INT)
    cycles = Cycles(compute=compute) + exchange(device, 8 * held) + Cycles(compute=vertices.arg_reduce(device, held))
    return Work("reduction", cycles, outputs_on_busiest_tile=held)


def results_on_tile(elements: int, n: float, outputs: int) -> float:
    """Return how many of the results the busiest tile has partial sums of."""
    return float(min(outputs, max(GROUP, math.ceil(n * outputs / max(1, elements)))))


def depth_of(device: Device, local: float, n: float, elements: int, outputs: int) -> float:
    """Return over how many tiles the partial sums of one result are spread."""
    tiles = min(device.chip.tiles, math.ceil(elements / max(1.0, n)))
    return float(max(1, min(round(tiles * local / outputs), tiles, elements // outputs)))


@lru_cache(maxsize=4096)
def combined(device: Device, local: float, depth: float) -> Cycles:
    """Return the cycles of adding up `local` fp32 partial results of a tile over `depth` tiles, in stages."""
    if depth <= 1:
        return Cycles()
    numbers = candidates.Numbers(element_bytes=4, partial_bytes=4, units=1, channel_group=1)
    found = candidates.reduction(np.array([local]), np.array([depth]), numbers, device)
    phases = int(found.phases[0])
    fixed = phases * device.constants.exchange_fixed_cycles
    return Cycles(float(found.compute[0]), float(found.exchange[0]) + fixed, phases)
