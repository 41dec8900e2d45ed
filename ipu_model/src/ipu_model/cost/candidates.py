"""From a way of splitting a contraction over tiles to cycles and memory, for many candidate splits at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipu_model.cost import matrix_vertices as vertices
from ipu_model.cost.device import Device
from ipu_model.cost.matrix_vertices import Array


@dataclass(frozen=True)
class Numbers:
    """How the numbers of a contraction are kept: bytes of operands and partials, matrix units and channel groups."""

    element_bytes: int
    partial_bytes: int
    units: int
    channel_group: int


@dataclass(frozen=True)
class Split:
    """Candidate splits of one method: arrays of equal length, sizes in elements of the busiest tile.

    `vertex` is in tile cycles; `inputs` and `weights` are what a tile needs, `results` what it computes;
    `field`, `ins`, `outs` and `groups` are into how many parts field, input channels (the reduction), output channels
    and conv groups are cut; `copies` are the elements that a tile rearranges beforehand, one array for each operand.
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
    copies: tuple[Array, ...] = field(default=())


@dataclass(frozen=True)
class Candidates:
    """What each candidate split costs: cycles, exchange phases, temporary bytes and results on the busiest tile."""

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
    reduced = reduction(split.results, split.ins, numbers, device)
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
    """Return the bytes that a tile receives, those of inputs that neighbours share counted once for all of them.

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
    """Cycles of adding up partials over tiles, exchange phases, and what the busiest tile holds afterwards."""

    compute: Array
    exchange: Array
    phases: Array
    outputs: Array


def reduction(results: Array, depth: Array, numbers: Numbers, device: Device) -> Reduction:
    """Add up `results` partials a tile over `depth` tiles, in stages that bound the number of messages.

    Without partials of other tiles, fp32 results of fp16 operands are only converted. Exchange is without the fixed
    cycles of its phases.
    """
    stages = np.where(depth <= 1, 0, np.where(depth <= 16, 1, np.where(depth <= 125, 2, 3)))
    compute, exchange = np.zeros_like(results), np.zeros_like(results)
    left, held = depth, results
    for remaining in (3, 2, 1):
        active = stages >= remaining
        if not active.any():
            continue
        ways = np.where(active, np.ceil(np.round(left ** (1 / remaining), 9)), 1.0)
        after = np.ceil(held / ways)
        cycles = vertices.reduce_stage(after, ways)
        compute = compute + np.where(active, cycles, 0)
        moved = held * numbers.partial_bytes / device.chip.exchange_bytes_per_cycle
        exchange = exchange + np.where(active, moved, 0)
        left, held = np.ceil(left / ways), after
    if numbers.partial_bytes > numbers.element_bytes:
        compute = compute + np.where(stages == 0, vertices.cast_stage(results), 0)
    return Reduction(compute, exchange, stages.astype(np.float64), held)
