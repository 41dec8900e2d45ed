"""Ops on images and on sets of points: pooling, resampling, farthest point sampling, and nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Element, Work
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.reductions import arg_reduced, reduced
from ipu_model.predict.ops.rule import OpView, OpWork, costs

# Thread cycles for each vector and position of the window (PopLibs lib/popnn).
FORWARD, BACKWARD_MAXIMUM = 3, 5

_ADAPTIVE = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d")
_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", *_ADAPTIVE)


@costs("max_pool2d_with_indices", words="max pool", further_results=("indices",))
@costs(*_POOLS[1:], "avg_pool1d")
def cost_pool(op: OpView) -> OpWork:
    """Cost a maximum or mean over windows, which reach into other tiles; one over a whole image is a reduction."""
    source, target = op.needed(0), op.output()
    if op.kind in _ADAPTIVE and math.prod(target.shape[2:]) == 1:
        return op.takes(reduced(op.device, source.elements, source.on_tile, target.elements, source.element))
    window = _window(op, 1, source.shape, target.shape)
    outputs = math.ceil(max(op.spread(op.output()), source.on_tile * op.output().elements / source.elements))
    read = source.on_tile * op.element.bytes
    cycles = Cycles(compute=vertices.pool(op.device, outputs, window, op.element, FORWARD))
    cycles = cycles + op.device.exchange(read, phases=2)
    return op.takes(Work("pooling", cycles, temporary_bytes=read, outputs_on_busiest_tile=outputs))


@costs(*(f"{kind}_backward" for kind in _POOLS), words={"max_pool2d_with_indices_backward": "max pool backward"})
def cost_pool_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a pool; for a maximum, inputs and outputs are compared again."""
    gradient, source, maximum = op.needed(0), op.needed(1), "max" in op.kind
    window = _window(op, 2, source.shape, gradient.shape)
    per_vector = BACKWARD_MAXIMUM if maximum else FORWARD
    compute = vertices.pool(op.device, gradient.on_tile, window, op.element, per_vector)
    compute += vertices.fill(op.device, source.on_tile, op.element)
    elements = 2 * gradient.on_tile + source.on_tile if maximum else gradient.on_tile
    read = elements * op.element.bytes
    cycles = Cycles(compute=compute) + op.device.exchange(read, phases=3 if maximum else 2)
    work = Work("pooling", cycles, temporary_bytes=read, outputs_on_busiest_tile=source.on_tile)
    return op.takes(work, source.layout)


def _window(op: OpView, kernel: int, source: Sequence[int], target: Sequence[int]) -> int:
    """Return the positions of a window: those of the argument `kernel`; adaptive pools derive them from the sizes."""
    if op.kind.removesuffix("_backward") in _ADAPTIVE:
        return math.prod(max(1, math.ceil(s / max(1, t))) for s, t in zip(source[2:], target[2:]))
    return math.prod(op.argument(kernel))


# Source pixels that one pixel of the result is made of.
_TAPS = {kind: int(taps) for taps, kinds in vertices.TABLE["taps"].items() for kind in kinds.split()}


@costs(*_TAPS, *(f"{kind}_backward" for kind in _TAPS))
def cost_resampled(op: OpView) -> OpWork:
    """Cost resampling: every pixel of the larger image gathers its source pixels and their weighted sum."""
    pixels = max(op.needed(0).tensor, op.output(), key=lambda tensor: tensor.elements)
    n = op.spread(pixels)
    taps = _TAPS[op.kind.removesuffix("_backward")]
    work = pointwise(op.device, n, op.element, ("copy",) if taps == 1 else ("add",) * taps, operands=taps)
    return op.takes(work.plus(op.device.exchange(taps * n * op.element.bytes)))


# ---------------------------------------------------------------------------------- sets of points
#
# Each of the two is one custom op of the captured graph (`ipu_model.capture.device_ops.points`). Symbols: P points, F
# features of each, S samples, K picks of the sample with most of them; n rows, m rows to find the nearest in. A
# distance is a subtraction and a square of every feature, added up.

_DISTANCE = ("add", "square", "add")


@costs("farthest_points")
def cost_farthest(op: OpView) -> OpWork:
    """Cost K picks: the point just picked goes to all tiles, which find the one farthest from all picks.

    Samples are worked on at the same time; points stay where they are.
    """
    source, counts, device = op.needed(0), op.argument(2), op.device
    points, features, element = source.shape[0], math.prod(source.shape[1:]), source.element
    samples, picks = len(counts), max(counts)
    n = device.spread(points, element)
    compute = vertices.elementwise(device, n * features, element, _DISTANCE, vertices.BINARY)
    compute += vertices.elementwise(device, n, element, ("maximum",), vertices.BINARY)
    sent = device.exchange(features * element.bytes * min(n, samples))
    step = Cycles(compute=compute) + sent + arg_reduced(device, n, samples).cycles
    work = Work(
        "points",
        step.times(picks),
        temporary_bytes=(n * (features + 1)) * element.bytes,
        outputs_on_busiest_tile=device.spread(picks * samples, Element.INT),
        repeats=max(1, picks),
    )
    return op.takes(work)


@costs("nearest_points")
def cost_nearest(op: OpView) -> OpWork:
    """Cost finding the nearest of m rows for each of n, with the m rows on one tile, on two, on four and so on.

    Tiles that share n rows compare results. Each tile receives its rows of both sets and keeps the distances of one of
    its n rows at a time.
    """
    works = []
    device, tiles, element = op.device, op.device.chip.tiles, op.needed(0).element
    (n, features), m = op.needed(0).shape, op.needed(1).shape[0]
    held = device.spread(n, Element.INT)
    for parts in (2**power for power in range(max(1, min(m, tiles)).bit_length())):
        rows, others = math.ceil(n / max(1, min(n, tiles // parts))), math.ceil(m / parts)
        pairs = rows * others
        received = (rows + others) * features * element.bytes
        compute = vertices.elementwise(device, pairs * features, element, _DISTANCE, vertices.BINARY)
        compute += vertices.arg_reduce(device, pairs)
        cycles = Cycles(compute=compute) + device.exchange(received)
        if parts > 1:
            compared = Cycles(compute=vertices.arg_reduce(device, held * parts))
            cycles = cycles + device.exchange(8 * held * parts) + compared
        temporary = received + others * element.bytes
        works.append(Work("points", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=held))
    return op.takes(min(works, key=lambda work: device.total(work.cycles)))
