"""Tile cycles of the vertices that work on `n` elements of the busiest tile, whatever tensor they belong to.

The formulas are those of PopLibs' cycle estimators (popops, popnn, poprand) for six workers: a tile runs its
workers in turn, so a tile cycle count is six times that of the longest worker. `n` counts elements of one
tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.cost.device import Device, Element

# Vector operations of popops: (cycles for a pair of fp32, cycles for four fp16), loads and stores included.
# Those with a comment are scalar functions of C or sums of published ones.
VECTOR_OPS: dict[str, tuple[float, float]] = {
    "copy": (2, 2),
    "add": (3, 3),
    "negate": (2, 2),
    "square": (2, 2),
    "scale": (2, 2),
    "maximum": (3, 4),
    "compare": (7, 9),
    "relu": (2, 2),
    "exp": (6, 4),
    "log": (12, 4),
    "log-add": (23, 13),
    "tanh": (12, 4),
    "sigmoid": (12, 6),
    "sqrt": (10, 23),
    "rsqrt": (8, 19),
    "reciprocal": (6, 15),
    "divide": (10, 21),
    "erf": (82, 52),
    "gelu": (44, 64),
    "sine": (4600, 100),
    "power": (624, 1300),
    "random": (5, 5),  # one draw of the hardware generator for 64 bits, compared or scaled
    "plain": (8, 8),  # an op without a vertex of its own: 3 cycles to load and store, 5 of generated C++
}

# Integers have no vector unit: an element takes a load, the operation, a store and their share of the loop.
SCALAR_CYCLES = 5


@dataclass(frozen=True)
class Overheads:
    """Cycles of a vertex call besides its loop: of the supervisor once, of each worker once."""

    supervisor: float
    worker: float


UNARY = Overheads(20, 17)
UNARY_IN_PLACE = Overheads(20, 55)
BINARY = Overheads(11, 29)
BINARY_IN_PLACE = Overheads(11, 58)
BROADCAST_SCALAR = Overheads(11, 20)
BROADCAST_VECTOR = Overheads(13, 37)
RELU = Overheads(9, 20)
NONLINEARITY_GRADIENT = Overheads(9, 29)
CAST = Overheads(12, 37)
SCALED_ADD = Overheads(57, 24)
FILL = Overheads(0, 26)
REDUCE = Overheads(33, 20)
DYNAMIC_SLICE = Overheads(25, 39)
MULTI_SLICE = Overheads(0, 30)
POOL = Overheads(7, 60)
ARG_REDUCE = Overheads(9, 30)


def worker_share(device: Device, n: float) -> int:
    """Return the elements of the worker that gets most of `n`."""
    return math.ceil(n / device.chip.workers)


def vectors(device: Device, n: float, element: Element) -> int:
    """Return the vectors of the worker that gets most of `n` elements."""
    return math.ceil(worker_share(device, n) / device.width(element))


def call(device: Device, overheads: Overheads, loop: float) -> float:
    """Return tile cycles of one vertex whose longest worker loops for `loop` thread cycles."""
    return overheads.supervisor + device.chip.workers * (overheads.worker + loop)


def loop_cycles(ops: tuple[str, ...], element: Element) -> float:
    """Return thread cycles for each vector of a chain of `VECTOR_OPS` that runs in one vertex.

    Only the first pays for loading and storing; each further one saves the two cycles of a copy.
    """
    if not element.is_floating:
        return SCALAR_CYCLES * len(ops)
    column = 0 if element is Element.FLOAT else 1
    return sum(VECTOR_OPS[op][column] for op in ops) - 2 * (len(ops) - 1)


def elementwise(
    device: Device,
    n: float,
    element: Element,
    ops: tuple[str, ...],
    overheads: Overheads,
    extra_loads: int = 0,
) -> float:
    """Return tile cycles of a chain of `VECTOR_OPS` on n elements; `extra_loads` operands besides."""
    return call(device, overheads, vectors(device, n, element) * (loop_cycles(ops, element) + extra_loads))


def broadcast_vector(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of adding or multiplying n elements by one value for each channel."""
    return call(device, BROADCAST_VECTOR, 2 * vectors(device, n, element))


def cast(device: Device, n: float) -> float:
    """Return tile cycles of converting n elements between fp16 and fp32: four in two thread cycles."""
    return call(device, CAST, 2 * math.ceil(worker_share(device, n) / device.chip.vector_width(2)))


def fill(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of writing a constant to n elements."""
    return call(device, FILL, math.ceil(worker_share(device, n) / device.chip.vector_width(element.bytes)))


def copy(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of copying n elements inside a tile (64 bits in, 64 bits out, then the loop)."""
    width = device.chip.vector_width(element.bytes)
    return call(device, FILL, 2 * math.ceil(worker_share(device, n) / width))


def scaled_add(device: Device, n: float, element: Element, other: Element | None = None) -> float:
    """Return tile cycles of `a += s * b`; mixed fp16 and fp32 take four or five cycles, not two."""
    mixed = other is not None and other is not element
    cycles = 2 if not mixed else 5 if element is Element.HALF else 4
    return call(device, SCALED_ADD, cycles * vectors(device, n, element))


def reduce_rows(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of adding up n elements: 16 bytes of them in five thread cycles."""
    wide = 8 if element is Element.HALF else 4 if element is Element.FLOAT else 1
    return call(device, REDUCE, 5 * math.ceil(worker_share(device, n) / wide))


def dynamic_slice(device: Device, pieces: float, n: float, element: Element) -> float:
    """Return tile cycles of copying `pieces` slices of n elements to or from a place known at run time."""
    width = device.chip.vector_width(element.bytes)
    return call(device, DYNAMIC_SLICE, pieces * (24 + 2 * math.ceil(worker_share(device, n) / width)))


def multi_slice(device: Device, hits: float, misses: float, row: float, element: Element) -> float:
    """Return tile cycles of looking up rows of `row` elements: `hits` are on this tile, `misses` are not."""
    width = device.chip.vector_width(element.bytes)
    per_worker_hits, per_worker_misses = worker_share(device, hits), worker_share(device, misses)
    return call(device, MULTI_SLICE, per_worker_hits * (19 + 2 * math.ceil(row / width)) + 8 * per_worker_misses)


def arg_reduce(device: Device, n: float) -> float:
    """Return tile cycles of finding the place of the largest of n elements."""
    return call(device, ARG_REDUCE, 3 * worker_share(device, n))


def pool(device: Device, outputs: float, window: int, element: Element, cycles_per_vector: float) -> float:
    """Return tile cycles of pooling: so many thread cycles for each vector and position of the window.

    A tenth more goes to the starts of rows.
    """
    per_output = 1.1 * cycles_per_vector * window
    return call(device, POOL, per_output * worker_share(device, outputs) / device.width(element))


def transpose(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of transposing n elements in blocks of four by four (fp16) or two by two (fp32)."""
    grain = 4 if element.bytes <= 2 else 2
    blocks = math.ceil(worker_share(device, n) / (grain * grain))
    return 7 + device.chip.workers * (37 + (4 if grain == 4 else 3) * blocks)
