"""Tile cycles of vertices, the programs of single tiles: PopLibs' cycle estimators.

A tile runs its workers in turn, so a tile cycle count is that of the longest worker times the number of workers.

First the vertices of the vector unit (popops, popnn, poprand): `n` counts elements of the busiest tile, whatever tensor
they belong to. Then those of convolutions and matrix products (lib/poplin/PerformanceEstimation.hpp), on arrays with
one entry for each candidate plan. Symbols there: F field elements on the tile (output positions, batch included), Gi
and Go groups of input and output channels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ipu_model.predict.calibration import read_data
from ipu_model.predict.device import Device, Element

Array: TypeAlias = NDArray[np.float64]
Bytes = TypeVar("Bytes", float, Array)

TABLE = read_data("vector_ops.toml")

# Vector operations of popops: (cycles for a pair of fp32, cycles for four fp16), loads and stores included.
VECTOR_OPS: Mapping[str, tuple[float, float]] = {op: (pair, four) for op, (pair, four) in TABLE["cycles"].items()}

# Integers have no vector unit: an element takes a load, the operation, a store and their share of the loop.
SCALAR_CYCLES = 5


@dataclass(frozen=True)
class Overheads:
    """The overhead of a vertex call outside its loop: once for the supervisor, and once for each worker."""

    supervisor: float
    worker: float


UNARY = Overheads(20, 17)
UNARY_IN_PLACE = Overheads(20, 55)
BINARY = Overheads(11, 29)
BINARY_IN_PLACE = Overheads(11, 58)
BROADCAST_SCALAR = Overheads(11, 20)
BROADCAST_VECTOR = Overheads(13, 17)
RELU = Overheads(9, 20)
NONLINEARITY_GRADIENT = Overheads(9, 29)
CAST = Overheads(12, 37)
SCALED_ADD = Overheads(57, 24)
FILL = Overheads(0, 26)
MULTI_SLICE = Overheads(0, 30)

# Channels that lie together on a tile: the layout that contractions leave.
CHANNELS_TOGETHER = 8

# Cycles a byte of transposing fp32 elements against fp16 ones: a block of 16 x 16 takes 18 + 8 (12 + 3 x 6) thread
# cycles in pairs of fp32, and 18 + 4 (12 + 4 x 2) in fours of fp16.
FP32_TRANSPOSE = (258 / 1024) / (98 / 512)

# Thread cycles to start a row of a broadcast, by whether its length is a multiple of a vector.
ALIGNED_ROW, MISALIGNED_ROW = 7, 25


def chains_of(section: str) -> dict[str, tuple[str, ...]]:
    """Return the chain of `VECTOR_OPS` of each kind of op that a section of `data/vector_ops.toml` names."""
    chains = {re.sub(r"(\d+)\*\((.*?)\)", lambda m: int(m[1]) * f"{m[2]} ", text): text for text in TABLE[section]}
    return {kind: tuple(chain.split()) for chain, text in chains.items() for kind in TABLE[section][text].split()}


def worker_share(device: Device, n: float) -> int:
    return math.ceil(n / device.chip.workers)


def vectors(device: Device, n: float, element: Element) -> int:
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
    device: Device, n: float, element: Element, ops: tuple[str, ...], overheads: Overheads, extra_loads: int = 0
) -> float:
    """Return tile cycles of a chain of `VECTOR_OPS` on n elements, with `extra_loads` further operands."""
    return call(device, overheads, vectors(device, n, element) * (loop_cycles(ops, element) + extra_loads))


def broadcast_vector(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of adding or multiplying n elements by one value for each channel, eight of them together.

    fp16 values of a group are taken at once and stay in registers while the worker goes through its rows; fp32 values
    are taken one by one.
    """
    rows = math.ceil(worker_share(device, n) / CHANNELS_TOGETHER)
    if element is Element.HALF:
        return call(device, BROADCAST_VECTOR, 5 + 15 + 2 * rows)
    return call(device, BROADCAST_VECTOR, CHANNELS_TOGETHER * (8 + 2 * rows))


def broadcast_rows(device: Device, n: float, columns: int, element: Element) -> float:
    """Return tile cycles of adding or multiplying n elements, in rows of `columns`, by one value for each row.

    All workers share each row, or each takes rows of its own, whichever is faster. A row whose length is no multiple
    of a vector starts late.
    """
    columns, width, workers = min(columns, max(1, math.ceil(n))), device.width(element), device.chip.workers
    rows = math.ceil(n / columns)
    start = ALIGNED_ROW if columns % width == 0 else MISALIGNED_ROW
    shared = rows * (start + 2 * math.ceil(columns / workers / width))
    apart = math.ceil(rows / workers) * (start + 2 * math.ceil(columns / width))
    return call(device, Overheads(11, 15), min(shared, apart))


def cast(device: Device, n: float) -> float:
    """Return tile cycles of converting n elements between fp16 and fp32: four in two thread cycles."""
    return call(device, CAST, 2 * math.ceil(worker_share(device, n) / device.chip.vector_width(2)))


def fill(device: Device, n: float, element: Element) -> float:
    return call(device, FILL, math.ceil(worker_share(device, n) / device.chip.vector_width(element.bytes)))


def copy(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of copying n elements inside a tile (64 bits in, 64 bits out, then the loop)."""
    return call(device, FILL, 2 * math.ceil(worker_share(device, n) / device.chip.vector_width(element.bytes)))


def layout_copy(device: Device, moved: Bytes, element_bytes: int, *, in_blocks: bool = True) -> Bytes:
    """Return tile cycles of rearranging `moved` bytes of a tile, in blocks or element by element."""
    constants = device.constants
    if in_blocks:
        per_byte = constants.layout_copy_cycles_per_byte * (1.0 if element_bytes < 4 else FP32_TRANSPOSE)
        return per_byte * moved + constants.layout_copy_fixed_cycles
    single = constants.two_byte_copy_cycles_per_byte if element_bytes == 2 else constants.four_byte_copy_cycles_per_byte
    return single * moved + constants.element_copy_fixed_cycles


def scaled_add(device: Device, n: float, element: Element, other: Element | None = None) -> float:
    """Return tile cycles of `a += s * b`; mixed fp16 and fp32 take four or five cycles, not two."""
    mixed = other is not None and other is not element
    cycles = 2 if not mixed else 5 if element is Element.HALF else 4
    return call(device, SCALED_ADD, cycles * vectors(device, n, element))


def reduce_rows(device: Device, n: float, element: Element) -> float:
    """Return tile cycles of adding up n elements: 16 bytes of them in five thread cycles."""
    wide = 8 if element is Element.HALF else 4 if element is Element.FLOAT else 1
    return call(device, Overheads(33, 20), 5 * math.ceil(worker_share(device, n) / wide))


def dynamic_slice(device: Device, pieces: float, n: float, element: Element) -> float:
    """Return tile cycles of copying `pieces` slices of n elements to or from a place known at run time."""
    width = device.chip.vector_width(element.bytes)
    return call(device, Overheads(25, 39), pieces * (24 + 2 * math.ceil(worker_share(device, n) / width)))


def multi_slice(device: Device, hits: float, misses: float, row: float, element: Element) -> float:
    """Return tile cycles of looking up rows of `row` elements: `hits` are on this tile, `misses` are not."""
    width = device.chip.vector_width(element.bytes)
    per_worker_hits, per_worker_misses = worker_share(device, hits), worker_share(device, misses)
    return call(device, MULTI_SLICE, per_worker_hits * (19 + 2 * math.ceil(row / width)) + 8 * per_worker_misses)


def multi_update(device: Device, hits: float, seen: float, row: float, element: Element) -> float:
    """Return tile cycles of adding `hits` rows; each worker goes through all indices, because it owns some rows."""
    width = device.chip.vector_width(element.bytes)
    found = worker_share(device, hits) * (19 + 2 * math.ceil(row / width))
    return call(device, MULTI_SLICE, device.constants.update_scan_cycles * seen + found)


def arg_reduce(device: Device, n: float) -> float:
    return call(device, Overheads(9, 30), 3 * worker_share(device, n))


def pool(device: Device, outputs: float, window: int, element: Element, cycles_per_vector: float) -> float:
    """Return tile cycles of pooling: `cycles_per_vector` thread cycles for each vector and position of the window."""
    per_output = device.constants.pool_row_factor * cycles_per_vector * window
    return call(device, Overheads(7, 60), per_output * worker_share(device, outputs) / device.width(element))


# ----------------------------------------------------------------- convolutions and matrix products
#
# The planner of the real stack takes the cheapest plan it finds, so it never uses a vertex in a way that makes less
# work slower: a worker with two elements counts as one with three, and rows are handed out whole or
# cut, whichever is faster.


class MatrixUnit:
    """How a tile multiplies: bytes of operands and partials, units, input channels of a pass, and its workers."""

    def __init__(self, element_bytes: int, partial_bytes: int, units: int, channel_group: int, workers: int) -> None:
        self.element_bytes, self.partial_bytes = element_bytes, partial_bytes
        self.units, self.channel_group, self.workers = units, channel_group, workers
        self.is_half = element_bytes == 2
        self.vector_width = 4 if self.is_half else 2
        # Cycles of loading all units' weights, 32 bytes each (16 fp16 or 8 fp32), 8 a cycle.
        self.weight_load_cycles = units * 32 // 8


def _conv_1x1_worker(elements: Array, unit: MatrixUnit) -> Array:
    if unit.is_half:
        return np.where(elements <= 0, 14.0, np.where(elements <= 1, 25.0, 30.0 + 4.0 * np.maximum(elements - 3, 0)))
    return np.where(elements <= 0, 24.0, 46.0 + 8.0 * np.maximum(elements - 3, 0))


def conv_1x1(field: Array, gi: Array, go: Array, groups: Array, unit: MatrixUnit) -> Array:
    """Return tile cycles of the 1 x 1 vertex: F field elements, Gi x Go channel groups, conv groups."""
    workers, load = unit.workers, unit.weight_load_cycles
    most, least = np.ceil(field / workers), np.floor(field / workers)
    worker = _conv_1x1_worker(most, unit)
    inner = np.maximum(workers * worker, workers * _conv_1x1_worker(least, unit) + 14)
    # The first group of input channels writes results, the others add to them: a cycle more a worker in fp16, while
    # in fp32 it is writing that takes longer.
    first, other = (inner, inner + workers) if unit.is_half else (inner + workers * (2 + 8 * most), inner)
    # A pass for each group of outputs: 18 or 19 cycles, 7 or 6 for each of its parts (one here), weights, workers.
    first_group = 11 + go * (18 + 7 + load + first)
    other_groups = (gi - 1) * (15 + go * (19 + 6 + load + other))
    # Once: 50, and each worker its 7, with 3 for every group after the first. 13 for each conv group.
    cycles: Array = 50 + workers * (7 + 3 * (gi * groups - 1)) + groups * (13 + other_groups + first_group)
    return cycles


@lru_cache(maxsize=8)
def _more_pieces(workers: int) -> Array:
    """Return how many pieces of rows beyond r // workers a worker touches when r rows are cut evenly, by r % workers.

    Worker k gets the stretch from k r / workers to (k + 1) r / workers.
    """
    touched = [
        max(math.ceil((k + 1) * left / workers) - k * left // workers for k in range(workers))
        for left in range(workers)
    ]
    return np.array(touched, dtype=np.float64)


def _conv_nx1_worker(rows: Array, width: Array, unit: MatrixUnit) -> Array:
    """Return thread cycles of the worker with the largest share of `rows` rows of `width` elements."""
    workers = unit.workers
    per_piece, per_element = (16, 4) if unit.is_half else (15, 8)
    whole = np.ceil(rows / workers)
    pieces = np.floor(rows / workers) + _more_pieces(workers)[(rows % workers).astype(np.int64)]
    cut = per_piece * pieces + per_element * np.ceil(rows * width / workers)
    cycles: Array = 17 + np.minimum(cut, per_piece * whole + per_element * whole * width)
    return cycles


def conv_nx1(
    rows: Array,
    width: Array,
    field: Array,
    gi: Array,
    go: Array,
    groups: Array,
    kernel: tuple[int, int],
    unit: MatrixUnit,
) -> Array:
    """Return tile cycles of the n x 1 vertex for a kernel of `kernel` positions (rows, columns).

    Each position works on `rows` rows of `width`; `field` are all results, which are zeroed first.
    """
    workers, (ky, kx) = unit.workers, kernel
    # 14 for each row of the kernel; for each of its columns 12, the weights, and 15 + 3 around them.
    load = ky * (14 + kx * (12 + unit.weight_load_cycles + 15 + 3))
    # 9: the most that a worker with less to do can add.
    inner = load + ky * kx * (workers * _conv_nx1_worker(rows, width, unit) + 9)
    # Each worker zeroes two results at a time.
    zeroing = workers * (np.ceil(field * unit.units / (2 * workers)) + 5) * go
    # For each conv group: 17 for each group of outputs, 6 between two of them and 1 at the end; zeroing; 16 and 14 for
    # each group of inputs, with 14 for each group of outputs in it. Besides, 6 between two conv groups (so once less
    # than there are) and 1 at the end.
    per_group = 17 * go + 6 * (go - 1) + 1 + zeroing + 16 + gi * (14 + go * (14 + inner)) + 6
    # Once 109 + 54, and 54 to 60: the middle.
    cycles: Array = 109 + 54 + 57 + groups * per_group - 6 + 1
    return cycles


def conv_slic(rows: Array, width: Array, blocks: Array, kernel: tuple[int, int], unit: MatrixUnit) -> Array:
    """Return tile cycles of the SLIC vertex (fp16, stride 1 or 2): `blocks` groups of four channels.

    The kernel is taken four columns at a time; the inputs pass once with fp16 partials and twice with fp32 ones.
    """
    passes = 1 if unit.partial_bytes == 2 else 2
    whole = np.ceil(rows / unit.workers)
    row = 15 + np.maximum(width - 5, 0)
    steps = kernel[0] * -(-kernel[1] // 4)
    # Weights take 16 + 21 cycles of the supervisor and 10 to 12 of each worker.
    load = 16 + 21 + unit.workers * 11
    # Once 28, 15 for each block of channels, 20 for each step of the kernel.
    cycles: Array = 28 + blocks * (15 + steps * (20 + load + unit.workers * passes * whole * row))
    return cycles


# What the supervisor of HMAC and VMAC does besides its workers: 58 to 65 once, then 23 for the conv group, 15 for the
# group of input channels and 10 for that of output channels.
_DOT_SUPERVISOR = 60 + (23 + 15 + 10)


def conv_hmac(outputs: Array, length: Array, unit: MatrixUnit) -> Array:
    """Return tile cycles of the HMAC vertex: `outputs` results, each a product of two vectors of `length`.

    A result takes 14 thread cycles to start and store, and one a vector of products in fp16, two in fp32.
    """
    share = np.ceil(outputs / unit.workers)
    each = 14 + np.ceil(length / unit.vector_width) * (1 if unit.is_half else 2)
    cycles: Array = _DOT_SUPERVISOR + unit.workers * share * each
    return cycles


def conv_vmac(outputs: Array, length: Array, unit: MatrixUnit) -> Array:
    """Return tile cycles of the VMAC vertex: `length` products a result, a vector of results at a time."""
    share = np.ceil(outputs / (unit.workers * unit.vector_width))
    cycles: Array = _DOT_SUPERVISOR + unit.workers * share * (7 + length)
    return cycles


def reduce_stage(outputs: Array, depth: Array, unit: MatrixUnit) -> Array:
    """Return tile cycles of adding `depth` partials for each of `outputs` results, sixteen bytes at a time."""
    at_once = 16 / unit.partial_bytes
    cycles: Array = 33 + unit.workers * (20 + (2 * depth + 9) * np.ceil(np.ceil(outputs / at_once) / unit.workers))
    return cycles


def cast_stage(outputs: Array, workers: int) -> Array:
    cycles: Array = 12 + workers * (37 + 2 * np.ceil(np.ceil(outputs / workers) / 4))
    return cycles
