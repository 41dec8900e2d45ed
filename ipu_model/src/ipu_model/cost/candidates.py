"""From ways of splitting a contraction over tiles to cycles and memory, many candidates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ipu_model.cost import matrix_vertices as vertices
from ipu_model.cost.device import Device
from ipu_model.cost.matrix_vertices import Array, Mask

# More partials than these in one or two stages would make too many messages (PopLibs
# lib/poplin/ConvReducePlan.cpp).
MOST_IN_ONE_STAGE, MOST_IN_TWO_STAGES = 16, 125


@dataclass(frozen=True)
class Numbers:
    """How numbers are kept and multiplied: bytes of operands and partials, matrix units, channel groups."""

    element_bytes: int
    partial_bytes: int
    units: int
    channel_group: int


@dataclass(frozen=True)
class Split:
    """Candidate splits of one method: arrays of equal length, sizes in elements of the busiest tile.

    `vertex` is in tile cycles; `inputs` and `weights` are what a tile needs, `results` what it computes;
    `field`, `ins`, `outs` and `groups` are into how many parts field, input channels (the reduction), output
    channels and conv groups are cut; `copies` are the elements that a tile rearranges beforehand, one array
    for each operand. The vector unit (`vector_unit`) writes results in their final type, the matrix unit
    writes partials.
    """

    method: str
    numbers: Numbers
    vertex: Array
    inputs: Array
    weights: Array
    results: Array
    field: Array
    ins: Array
    outs: Array
    groups: Array
    copies: tuple[Array, ...] = ()
    vector_unit: bool = False


@dataclass(frozen=True)
class Candidates:
    """What each candidate costs: cycles, exchange phases, temporary bytes, results on the busiest tile."""

    split: Split
    compute: Array
    exchange: Array
    phases: Array
    temporary: Array
    outputs: Array

    def total(self, device: Device) -> Array:
        """Return all cycles of each candidate, synchronisation included."""
        return self.compute + self.exchange + self.phases * device.sync_cycles


def evaluate(split: Split, device: Device) -> Candidates:
    """Return cycles and memory of each candidate of `split`."""
    numbers, rate = split.numbers, device.chip.exchange_bytes_per_cycle
    operands = split.inputs + split.weights
    compute, phases = split.vertex, np.ones_like(split.vertex)
    exchange = _operand_bytes(split, device) / rate
    temporary = operands * numbers.element_bytes + split.results * numbers.partial_bytes
    for copied in split.copies:
        moved = copied * numbers.element_bytes
        compute = compute + _copy_cycles(moved, device)
        exchange = exchange + moved / rate
        phases = phases + 1
        temporary = np.maximum(temporary, 2 * moved)
    reduced = reduction(split.results, split.ins, numbers, device, converted=not split.vector_unit)
    exchange = exchange + reduced.exchange
    phases = phases + reduced.phases
    return Candidates(
        split=split,
        compute=compute + reduced.compute,
        exchange=exchange + phases * device.constants.exchange_fixed_cycles,
        phases=phases,
        temporary=temporary,
        outputs=reduced.outputs,
    )


def _copy_cycles(moved: Array, device: Device) -> Array:
    constants = device.constants
    return constants.layout_copy_cycles_per_byte * moved + constants.layout_copy_fixed_cycles


def _operand_bytes(split: Split, device: Device) -> Array:
    """Return the bytes that a tile receives; neighbours that share inputs receive them at once.

    A tile has its part of each operand already. Two neighbours that share an exchange bus and need the same
    inputs (because output channels are split evenly over them) receive them together.
    """
    shared = device.chip.tiles_per_exchange_bus
    at_once = np.where(split.outs % shared == 0, float(shared), 1.0)
    inputs = split.inputs * (1 - 1 / split.outs) / at_once
    weights = split.weights * (1 - 1 / split.field)
    return (inputs + weights) * split.numbers.element_bytes


@dataclass(frozen=True)
class Reduction:
    """Cycles and phases of adding up partials over tiles, and what the busiest tile holds afterwards."""

    compute: Array
    exchange: Array
    phases: Array
    outputs: Array

    def total(self, device: Device) -> Array:
        """Return all cycles, those that each exchange phase takes besides its bytes included."""
        fixed = device.sync_cycles + device.constants.exchange_fixed_cycles
        return self.compute + self.exchange + self.phases * fixed

    def replaced(self, other: Reduction, where: Mask) -> Reduction:
        """Return this reduction with the candidates of `other` where `where` holds."""
        return Reduction(
            np.where(where, other.compute, self.compute),
            np.where(where, other.exchange, self.exchange),
            np.where(where, other.phases, self.phases),
            np.where(where, other.outputs, self.outputs),
        )


def reduction(results: Array, depth: Array, numbers: Numbers, device: Device, *, converted: bool = True) -> Reduction:
    """Add up `results` partials a tile over `depth` tiles, in as many stages as are fastest.

    A stage adds at most `MOST_IN_ONE_STAGE` partials, two at most `MOST_IN_TWO_STAGES`, to bound the number
    of messages. Without partials of other tiles, fp32 results of fp16 operands are only converted. Exchange
    is without the fixed cycles of its phases.
    """
    alone = depth <= 1
    best = _alone(results, numbers) if converted else _nothing(results)
    if alone.all():
        return best
    for stages, most in ((3, math.inf), (2, MOST_IN_TWO_STAGES), (1, MOST_IN_ONE_STAGE)):
        found = _staged(results, depth, stages, numbers, device)
        better = ~alone & (depth <= most)
        if stages < 3:
            better &= found.total(device) <= best.total(device)
        best = best.replaced(found, better)
    return best


def _nothing(results: Array) -> Reduction:
    zero = np.zeros_like(results)
    return Reduction(zero, zero, zero, results)


def _alone(results: Array, numbers: Numbers) -> Reduction:
    """Return the conversion of partials to results, if they differ in type."""
    if numbers.partial_bytes <= numbers.element_bytes:
        return _nothing(results)
    zero = np.zeros_like(results)
    return Reduction(vertices.cast_stage(results), zero, zero, results)


def _staged(results: Array, depth: Array, stages: int, numbers: Numbers, device: Device) -> Reduction:
    compute, exchange = np.zeros_like(results), np.zeros_like(results)
    left, held = depth, results
    for remaining in range(stages, 0, -1):
        # Rounded before it is rounded up: the cube root of 8 is a little more than 2 in floating point.
        ways = np.ceil(np.round(left ** (1 / remaining), 9))
        after = np.ceil(held / ways)
        compute = compute + vertices.reduce_stage(after, ways)
        exchange = exchange + held * numbers.partial_bytes / device.chip.exchange_bytes_per_cycle
        left, held = np.ceil(left / ways), after
    return Reduction(compute, exchange, np.full_like(results, float(stages)), np.ceil(results / depth))
