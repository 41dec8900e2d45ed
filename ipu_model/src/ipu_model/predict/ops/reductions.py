"""Sums, means, maxima over dimensions: first on each tile, then in stages over the tiles; sorting; and estimates."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.rule import OpView, OpWork, costs
from ipu_model.predict.planner import reduction
from ipu_model.predict.vertices import MatrixUnit

_REDUCTIONS = vertices.chains_of("reductions")


def reduced(device: Device, elements: int, n: float, outputs: int, element: Element) -> Work:
    local, depth = partial_sums(device, elements, n, outputs)
    cycles = Cycles(compute=vertices.reduce_rows(device, n, element)) + combined(device, local, depth)
    held = device.spread(outputs, element)
    return Work("reduction", cycles, temporary_bytes=4 * local, outputs_on_busiest_tile=held)


def arg_reduced(device: Device, n: float, outputs: int) -> Work:
    """Return the work of finding the places of maxima: on each tile, then over the tiles of a row."""
    compute = vertices.arg_reduce(device, n)
    held = device.spread(outputs, Element.INT)
    cycles = Cycles(compute=compute) + device.exchange(8 * held) + Cycles(compute=vertices.arg_reduce(device, held))
    return Work("reduction", cycles, outputs_on_busiest_tile=held)


def partial_sums(device: Device, elements: int, n: float, outputs: int) -> tuple[float, float]:
    """Return of how many results the busiest tile has partial sums, and over how many tiles those of one are spread."""
    local = float(min(outputs, max(vertices.CHANNELS_TOGETHER, math.ceil(n * outputs / max(1, elements)))))
    tiles = min(device.chip.tiles, math.ceil(elements / max(1.0, n)))
    return local, float(max(1, min(round(tiles * local / max(1, outputs)), tiles, elements // max(1, outputs))))


@lru_cache(maxsize=4096)
def combined(device: Device, local: float, depth: float) -> Cycles:
    """Return the cycles of adding up `local` fp32 partial results of a tile over `depth` tiles, in stages."""
    if depth <= 1:
        return Cycles()
    unit = MatrixUnit(element_bytes=4, partial_bytes=4, units=1, channel_group=1, workers=device.chip.workers)
    found = reduction(np.array([local]), np.array([depth]), unit, device)
    return Cycles(float(found.compute[0]), float(found.exchange[0]), int(found.phases[0]))


def ordered(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of sorting rows, or finding their largest: a bitonic network of comparisons."""
    length = max(2, math.ceil(elements / max(1, rows)))
    steps = math.ceil(math.log2(length))
    rounds = steps * (steps + 1) // 2
    step = Cycles(compute=vertices.elementwise(device, n, element, ("compare", "maximum"), vertices.BINARY))
    one = step + device.exchange(n * (element.bytes + 4))
    temporary = n * (element.bytes + 4)
    return Work("ordering", one.times(rounds), temporary_bytes=temporary, outputs_on_busiest_tile=n)


@costs(*_REDUCTIONS)
def cost_reduction(op: OpView) -> OpWork:
    """Cost a reduction over some or all dimensions; one over nothing is a copy."""
    source, other, n = op.needed(0), op.tensor(1), op.needed(0).on_tile
    if op.kind in ("max", "min") and other is not None:
        layout = min((source.layout, other.layout), key=lambda layout: layout.on_tile)
        moved = int(source.layout.origin != other.layout.origin)
        return op.takes(pointwise(op.device, layout.on_tile, op.element, ("maximum",), 2, moved=moved), layout)
    work = reduced(op.device, source.elements, n, op.output().elements, source.element)
    if before := _REDUCTIONS[op.kind]:
        work = work.plus(pointwise(op.device, n, source.element, before).cycles)
    if len(op.outputs) > 1 and op.kind in ("max", "min"):
        work = work.plus(arg_reduced(op.device, n, op.output().elements).cycles)
    return op.takes(work)


@costs("argmax argmin")
def cost_arg(op: OpView) -> OpWork:
    return op.takes(arg_reduced(op.device, op.needed(0).on_tile, op.output().elements))


@costs("sort topk argsort kthvalue median mode cumsum cumprod cummax cummin logcumsumexp")
def cost_ordered(op: OpView) -> OpWork:
    source = op.needed(0)
    dim = op.argument(2 if op.kind in ("topk", "kthvalue") else 1, "dim")
    shape = source.shape or (1,)
    length = source.elements if (op.kind == "median" and dim is None) else shape[dim if isinstance(dim, int) else -1]
    rows = source.elements // max(1, length)
    return op.takes(ordered(op.device, source.elements, source.on_tile, rows, source.element))


# ---------------------------------------------------------------------------------------- estimates
#
# Ops that the library has no vertex for: distances, products of three tensors, searches. Each is modelled as a program
# of simpler steps: equal rounds, each a chain of vector operations on n elements of the busiest tile, preceded by an
# exchange of the data that this tile needs from others. Whether a device would run the textbook algorithm is not
# published. Confidence: estimated. Profiles show these ops as the family "estimated".


def estimated(
    device: Device, rounds: int, elements: int, chain: tuple[str, ...], element: Element, outputs: int, *, pairs: bool
) -> Work:
    """Return the work of `rounds` on `elements` each, which leave `outputs` elements, laid out evenly.

    Before a round, the busiest tile receives all elements that it works on; where these are `pairs`, it receives those
    of a row and of a column of a square piece.
    """
    n = device.spread(max(1, elements), element)
    received = min(n, 2 * math.ceil(math.sqrt(n))) if pairs else n
    step = Cycles(compute=vertices.elementwise(device, n, element, chain, vertices.BINARY))
    step += device.exchange(received * element.bytes)
    return Work(
        "estimated",
        step.times(rounds),
        temporary_bytes=(n + received) * element.bytes,
        outputs_on_busiest_tile=device.spread(outputs, element),
        repeats=rounds,
    )


@costs("_cdist_forward _cdist_backward")
def cost_distances(op: OpView) -> OpWork:
    """Cost the distances of rows from rows: every feature of every pair, twice for a gradient."""
    backward = op.kind.endswith("backward")
    features, outputs = op.needed(int(backward)).shape[-1], op.output().elements
    elements = features * (op.needed(0).elements if backward else outputs)
    chain = ("add", "square", "add") * (1 + backward)
    return op.takes(estimated(op.device, 1, elements, chain, op.element, outputs, pairs=True))


@costs("_trilinear")
def cost_trilinear(op: OpView) -> OpWork:
    """Cost a sum over products of three tensors: every product of their joint shape, once.

    Arguments 3 to 5 are the dimensions of the joint shape that each operand lacks.
    """
    shapes = []
    for position in range(3):
        shape = list(op.needed(position).shape)
        for dim in sorted(op.argument(3 + position)):
            shape.insert(dim, 1)
        shapes.append(shape)
    terms, outputs = math.prod(max(sizes) for sizes in zip(*shapes)), op.output().elements
    return op.takes(estimated(op.device, 1, terms, ("add", "add", "add"), op.element, outputs, pairs=True))


@costs("bucketize")
def cost_search(op: OpView) -> OpWork:
    """Cost looking up values among N sorted ones by bisection: log2(N) rounds."""
    (length,), outputs = op.needed(1).shape, op.output().elements
    rounds = max(1, math.ceil(math.log2(length + 1)))
    return op.takes(estimated(op.device, rounds, outputs, ("plain", "compare"), op.element, outputs, pairs=False))
