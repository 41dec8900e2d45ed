"""Normalisation over batches, groups of channels or features, forward and backward.

PopLibs lowers them to whole passes over the tensor (one multiplication or addition with a value for each
channel) and to reductions (lib/poplin/Norms.cpp, lib/popnn): training forward has four passes and a joint
reduction of sums and squares, backward about ten passes and four reductions, inference two passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.reduction import combined, depth_of, results_on_tile
from ipu_model.cost.work import Cycles, Work

FORWARD_PASSES, FORWARD_REDUCTIONS = 4, 2
BACKWARD_PASSES, BACKWARD_REDUCTIONS = 10, 4
INFERENCE_PASSES = 2

# Ops on one value for each channel: inverse deviation, two running statistics, combined factors.
CHANNEL_OPS = 4


@dataclass(frozen=True)
class Normalised:
    """A tensor that is normalised: its elements, `n` of them on the busiest tile, and its statistics.

    `statistics` is the number of means: channels for a batch norm, samples x groups for a group norm, rows
    for a layer norm. `stable` asks for the variance in a second reduction, after the mean.
    """

    elements: int
    n: float
    statistics: int
    element: Element
    stable: bool = False


def forward(device: Device, norm: Normalised, *, running: bool = True) -> Work:
    """Return the work of normalising with the micro-batch's statistics; `running` averages are kept."""
    passes, reductions, stages = FORWARD_PASSES, FORWARD_REDUCTIONS, 1
    if norm.stable:
        passes, stages = passes + 1, 2
    channel_ops = CHANNEL_OPS if running else CHANNEL_OPS - 2
    return _norm(device, norm, passes, reductions, stages, channel_ops)


def inference(device: Device, norm: Normalised) -> Work:
    """Return the work of normalising with kept statistics: one multiplication and one addition."""
    return _norm(device, norm, INFERENCE_PASSES, 0, 0, 2)


def backward(device: Device, norm: Normalised) -> Work:
    """Return the work of the gradients of input, scale and shift; the input is whitened again."""
    work = _norm(device, norm, BACKWARD_PASSES, BACKWARD_REDUCTIONS, 2, CHANNEL_OPS)
    moved = norm.n * norm.element.bytes
    return replace(work.plus(exchange(device, moved)), temporary_bytes=2 * moved)


def _norm(device: Device, norm: Normalised, passes: int, reductions: int, stages: int, channel_ops: int) -> Work:
    """Return passes and reductions over the tensor; the reductions share `stages` rounds over the tiles."""
    compute = passes * vertices.broadcast_vector(device, norm.n, norm.element)
    compute += reductions * vertices.reduce_rows(device, norm.n, norm.element)
    compute += channel_ops * vertices.broadcast_vector(device, _held(device, norm), norm.element)
    cycles = Cycles(compute=compute)
    if stages:
        local = results_on_tile(norm.elements, norm.n, norm.statistics)
        depth = depth_of(device, local, norm.n, norm.elements, norm.statistics)
        once = combined(device, local * reductions / stages, depth)
        # The finished statistics go back to the tiles that need them.
        cycles = cycles + (once + exchange(device, local * reductions / stages * norm.element.bytes)).times(stages)
    return Work("normalisation", cycles, outputs_on_busiest_tile=norm.n)


def _held(device: Device, norm: Normalised) -> int:
    return device.spread(norm.statistics, norm.element)
