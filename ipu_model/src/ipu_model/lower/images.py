"""Rules for ops on images: pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipu_model.cost import pooling, reduction
from ipu_model.cost.elementwise import Pointwise, pointwise
from ipu_model.cost.exchange import exchange
from ipu_model.cost.pooling import Pool
from ipu_model.lower.view import Operand, OpView, Result, Rule, result

_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d")
_POOL_GRADIENTS = (
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "avg_pool3d_backward",
)  # fmt: skip
_ADAPTIVE = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d")

# Source pixels that one pixel of the result is made of; the first kind that is in the op's name counts.
_TAPS = {"nearest": 1, "bilinear": 4, "bicubic": 16, "trilinear": 8, "linear": 2}


def rules() -> dict[str, Rule]:
    """Return the rule of each op on images."""
    found: dict[str, Rule] = dict.fromkeys(_POOLS, lower_pool)
    found |= dict.fromkeys(_POOL_GRADIENTS, lower_pool_gradient)
    found |= dict.fromkeys(_ADAPTIVE, lower_adaptive_pool)
    found |= dict.fromkeys((f"{name}_backward" for name in _ADAPTIVE), lower_adaptive_pool_gradient)
    found |= dict.fromkeys(_resamplings(), lower_resampled)
    return found


def _resamplings() -> list[str]:
    kinds = [
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
        "grid_sampler_2d", "grid_sampler_3d",
    ]  # fmt: skip
    return [*kinds, *(f"{kind}_backward" for kind in kinds)]


def lower_pool(op: OpView) -> Result:
    """Cost a maximum or mean over windows."""
    source = op.needed(0)
    return _pooled(op, source, _window(op.argument(1)))


def lower_adaptive_pool(op: OpView) -> Result:
    """Cost a pool to a given size: one pixel is a reduction, more are windows."""
    source = op.needed(0)
    target = op.output().shape[2:]
    if math.prod(target) == 1:
        work = reduction.reduced(op.device, source.elements, source.on_tile, op.output().elements, source.element)
        return result(op, work)
    return _pooled(op, source, _adaptive_window(source.shape, op.output().shape))


def _pooled(op: OpView, source: Operand, window: int) -> Result:
    outputs = max(op.spread(op.output()), source.on_tile * op.output().elements / source.elements)
    pool = Pool(source.on_tile, math.ceil(outputs), window, op.element)
    return result(op, pooling.forward(op.device, pool))


def lower_pool_gradient(op: OpView) -> Result:
    """Cost the gradient of a pool over windows."""
    return _pool_gradient(op, _window(op.argument(2)), maximum=op.name.startswith("max"))


def lower_adaptive_pool_gradient(op: OpView) -> Result:
    """Cost the gradient of a pool to a given size."""
    gradient, source = op.needed(0), op.needed(1)
    window = _adaptive_window(source.shape, gradient.shape)
    return _pool_gradient(op, window, maximum="max" in op.name)


def _pool_gradient(op: OpView, window: int, *, maximum: bool) -> Result:
    gradient, source = op.needed(0), op.needed(1)
    pool = Pool(source.on_tile, gradient.on_tile, window, op.element)
    return result(op, pooling.backward(op.device, pool, maximum=maximum), source.layout)


def _window(kernel: object) -> int:
    assert isinstance(kernel, (list, tuple)), f"the kernel of a pool is a list; got {kernel!r}"
    return math.prod(int(k) for k in kernel)


def _adaptive_window(source: Sequence[int], target: Sequence[int]) -> int:
    return math.prod(max(1, math.ceil(s / max(1, t))) for s, t in zip(source[2:], target[2:]))


def lower_resampled(op: OpView) -> Result:
    """Cost resampling: every pixel of the result gathers its source pixels and their weighted sum.

    A gradient works on the larger of the two images as well.
    """
    source = op.needed(0)
    pixels = max(source.tensor, op.output(), key=lambda tensor: tensor.elements)
    n = op.spread(pixels)
    taps = next((count for kind, count in _TAPS.items() if kind in op.name), 4)
    chain = Pointwise(n=n, element=op.element, ops=("copy",) if taps == 1 else ("add",) * taps, operands=taps)
    work = pointwise(op.device, chain).plus(exchange(op.device, taps * n * op.element.bytes))
    return result(op, work)
