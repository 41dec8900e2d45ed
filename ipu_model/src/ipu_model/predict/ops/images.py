"""Ops on images: pooling, and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.pointwise import Pointwise, pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, Rule

_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d")
_POOL_GRADIENTS = (
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "avg_pool3d_backward",
)  # fmt: skip
_ADAPTIVE = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d")

_RESAMPLINGS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "grid_sampler_2d", "grid_sampler_3d",
)  # fmt: skip

# Source pixels that one pixel of the result is made of; the first kind that is in the op's name counts.
_TAPS = {"nearest": 1, "bilinear": 4, "bicubic": 16, "trilinear": 8, "linear": 2}

# Thread cycles for each vector and position of the window (PopLibs lib/popnn).
FORWARD, BACKWARD_MAXIMUM = 3, 5


@dataclass(frozen=True)
class Pool:
    """A pooling of `window` positions: elements of input and output on the busiest tile."""

    inputs: float
    outputs: float
    window: int
    element: Element


def pooled(device: Device, pool: Pool) -> Work:
    """Return the work of a maximum or mean over windows, which reach into other tiles."""
    compute = vertices.pool(device, pool.outputs, pool.window, pool.element, FORWARD)
    cycles = Cycles(compute=compute) + device.exchange(pool.inputs * pool.element.bytes, phases=2)
    temporary = pool.inputs * pool.element.bytes
    return Work("pooling", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=pool.outputs)


def pooled_gradient(device: Device, pool: Pool, *, maximum: bool) -> Work:
    """Return the work of the gradient; for a maximum, inputs and outputs are compared again."""
    per_vector = BACKWARD_MAXIMUM if maximum else FORWARD
    compute = vertices.pool(device, pool.outputs, pool.window, pool.element, per_vector)
    compute += vertices.fill(device, pool.inputs, pool.element)
    read = 2 * pool.outputs + pool.inputs if maximum else pool.outputs
    cycles = Cycles(compute=compute) + device.exchange(read * pool.element.bytes, phases=3 if maximum else 2)
    temporary = read * pool.element.bytes
    return Work("pooling", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=pool.inputs)


def cost_pool(op: OpView) -> OpWork:
    """Cost a maximum or mean over windows."""
    source = op.needed(0)
    return _over_windows(op, source, _window(op.argument(1)))


def cost_adaptive_pool(op: OpView) -> OpWork:
    """Cost a pool to a given size: one pixel is a reduction, more are windows."""
    source = op.needed(0)
    target = op.output().shape[2:]
    if math.prod(target) == 1:
        work = reduced(op.device, source.elements, source.on_tile, op.output().elements, source.element)
        return op.takes(work)
    return _over_windows(op, source, _adaptive_window(source.shape, op.output().shape))


def _over_windows(op: OpView, source: Operand, window: int) -> OpWork:
    outputs = max(op.spread(op.output()), source.on_tile * op.output().elements / source.elements)
    pool = Pool(source.on_tile, math.ceil(outputs), window, op.element)
    return op.takes(pooled(op.device, pool))


def cost_pool_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a pool over windows."""
    return _pool_gradient(op, _window(op.argument(2)), maximum=op.kind.startswith("max"))


def cost_adaptive_pool_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a pool to a given size."""
    gradient, source = op.needed(0), op.needed(1)
    window = _adaptive_window(source.shape, gradient.shape)
    return _pool_gradient(op, window, maximum="max" in op.kind)


def _pool_gradient(op: OpView, window: int, *, maximum: bool) -> OpWork:
    gradient, source = op.needed(0), op.needed(1)
    pool = Pool(source.on_tile, gradient.on_tile, window, op.element)
    return op.takes(pooled_gradient(op.device, pool, maximum=maximum), source.layout)


def _window(kernel: object) -> int:
    assert isinstance(kernel, (list, tuple)), f"the kernel of a pool is a list; got {kernel!r}"
    return math.prod(int(k) for k in kernel)


def _adaptive_window(source: Sequence[int], target: Sequence[int]) -> int:
    return math.prod(max(1, math.ceil(s / max(1, t))) for s, t in zip(source[2:], target[2:]))


def cost_resampled(op: OpView) -> OpWork:
    """Cost resampling: every pixel of the result gathers its source pixels and their weighted sum.

    A gradient works on the larger of the two images as well.
    """
    source = op.needed(0)
    pixels = max(source.tensor, op.output(), key=lambda tensor: tensor.elements)
    n = op.spread(pixels)
    taps = next((count for kind, count in _TAPS.items() if kind in op.kind), 4)
    chain = Pointwise(n=n, element=op.element, ops=("copy",) if taps == 1 else ("add",) * taps, operands=taps)
    work = pointwise(op.device, chain).plus(op.device.exchange(taps * n * op.element.bytes))
    return op.takes(work)


RULES = (
    Rule(_POOLS, cost_pool),
    Rule(_POOL_GRADIENTS, cost_pool_gradient),
    Rule(_ADAPTIVE, cost_adaptive_pool),
    Rule(tuple(f"{name}_backward" for name in _ADAPTIVE), cost_adaptive_pool_gradient),
    Rule((*_RESAMPLINGS, *(f"{kind}_backward" for kind in _RESAMPLINGS)), cost_resampled),
)
