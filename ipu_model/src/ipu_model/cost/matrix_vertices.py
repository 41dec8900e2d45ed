"""Tile cycles of the vertices that plans of contractions are made of, for many candidate plans at once.

PopLibs' formulas (lib/poplin/PerformanceEstimation.hpp) for six workers, on arrays of candidates. Symbols: F
field elements on the tile (output positions, batch included), Gi and Go groups of input and output channels,
U matrix units, W cycles to load a block of weights.

The planner of the real stack takes the cheapest plan it finds, so a vertex that is slower for less work would
never be used as such: a worker of two elements counts as one of three, rows are dealt out whole or cut,
whichever is faster.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

WORKERS = 6

# More pieces of rows than r // 6 that a worker touches when r rows are cut evenly, by r % 6.
_MORE_PIECES = np.array([0.0, 1.0, 1.0, 1.0, 2.0, 2.0])


def weight_load_cycles(units: int) -> int:
    """Return the cycles of loading all units' weights, 32 bytes each (16 fp16 or 8 fp32), 8 a cycle."""
    return units * 32 // 8


def pointwise_worker(elements: Array, element_bytes: int) -> Array:
    """Return thread cycles of one worker of the 1 x 1 vertex for so many field elements."""
    if element_bytes == 2:
        return np.where(elements <= 0, 14.0, np.where(elements <= 1, 25.0, 30.0 + 4.0 * np.maximum(elements - 3, 0)))
    return np.where(elements <= 0, 24.0, 46.0 + 8.0 * np.maximum(elements - 3, 0))


def pointwise(field: Array, gi: Array, go: Array, groups: Array, units: int, element_bytes: int) -> Array:
    """Return tile cycles of the 1 x 1 vertex: F field elements, Gi x Go channel groups, conv groups."""
    most, least = np.ceil(field / WORKERS), np.floor(field / WORKERS)
    worker = pointwise_worker(most, element_bytes)
    inner = np.maximum(WORKERS * worker, WORKERS * pointwise_worker(least, element_bytes) + 14)
    if element_bytes == 2:
        first, other = inner, inner + WORKERS
    else:
        first, other = inner + WORKERS * (2 + 8 * most), inner
    load = weight_load_cycles(units)
    first_group = 11 + go * (18 + 7 + load + first)
    other_groups = (gi - 1) * (15 + go * (19 + 6 + load + other))
    cycles: Array = 50 + WORKERS * (7 + 3 * (gi * groups - 1)) + groups * (13 + other_groups + first_group)
    return cycles


def row_worker(rows: Array, width: Array, element_bytes: int) -> Array:
    """Return thread cycles of the worker with the largest share of `rows` rows of `width` elements."""
    per_piece, per_element = (16, 4) if element_bytes == 2 else (15, 8)
    whole = np.ceil(rows / WORKERS)
    pieces = np.floor(rows / WORKERS) + _MORE_PIECES[(rows % WORKERS).astype(np.int64)]
    cut = per_piece * pieces + per_element * np.ceil(rows * width / WORKERS)
    cycles: Array = 17 + np.minimum(cut, per_piece * whole + per_element * whole * width)
    return cycles


def rowwise(
    rows: Array, width: Array, field: Array, gi: Array, go: Array, groups: Array, kernel: tuple[int, int],
    units: int, element_bytes: int,
) -> Array:  # fmt: skip
    """Return tile cycles of the n x 1 vertex for a kernel of `kernel` positions (rows, columns).

    Each position works on `rows` rows of `width`; `field` are all results, which are zeroed first.
    """
    worker = row_worker(rows, width, element_bytes)
    load = weight_load_cycles(units)
    ky, kx = kernel
    inner = ky * (14 + kx * (12 + load + 18)) + ky * kx * (WORKERS * worker + 9)
    zeroing = WORKERS * (np.ceil(field * units / (2 * WORKERS)) + 5) * go
    per_group = 17 * go + 6 * (go - 1) + 1 + 6 + 16 + gi * (14 + go * (14 + inner)) + zeroing
    cycles: Array = 109 + 54 + 57 - 6 + 1 + groups * per_group
    return cycles


def windowed(rows: Array, width: Array, blocks: Array, kernel: tuple[int, int], passes: int) -> Array:
    """Return tile cycles of the SLIC vertex (fp16, stride 1 or 2): `blocks` groups of four channels.

    The kernel is taken four columns at a time; `passes` is 1 with fp16 partials and 2 with fp32 ones.
    """
    whole = np.ceil(rows / WORKERS)
    row = 15 + np.maximum(width - 5, 0)
    steps = kernel[0] * -(-kernel[1] // 4)
    load = 16 + 21 + WORKERS * 11
    cycles: Array = 28 + blocks * (15 + steps * (20 + load + WORKERS * passes * whole * row))
    return cycles


def dot_products(outputs: Array, length: Array, element_bytes: int) -> Array:
    """Return tile cycles of the HMAC vertex: `outputs` results, each a product of two vectors of `length`."""
    width = 4 if element_bytes == 2 else 2
    share = np.ceil(outputs / WORKERS)
    cycles: Array = 60 + 48 + WORKERS * share * (14 + np.ceil(length / width) * (1 if element_bytes == 2 else 2))
    return cycles


def channelwise(outputs: Array, length: Array, element_bytes: int) -> Array:
    """Return tile cycles of the VMAC vertex: `length` products a result, a vector of results at a time."""
    width = 4 if element_bytes == 2 else 2
    cycles: Array = 60 + 48 + WORKERS * np.ceil(outputs / (WORKERS * width)) * (7 + length)
    return cycles


def reduce_stage(outputs: Array, depth: Array) -> Array:
    """Return tile cycles of adding `depth` partials for each of `outputs` results on a tile, four at a time.

    PopLibs' estimate has eight at a time for fp16 partials; four are nearer to the published 4096 x 4096 x
    1024 product with half partials, whose partials are widened to fp32 to be added.
    """
    cycles: Array = 33 + WORKERS * (20 + (2 * depth + 9) * np.ceil(np.ceil(outputs / 4) / WORKERS))
    return cycles


def cast_stage(outputs: Array) -> Array:
    """Return tile cycles of converting fp32 partials to fp16 results."""
    cycles: Array = 12 + WORKERS * (37 + 2 * np.ceil(np.ceil(outputs / WORKERS) / 4))
    return cycles
