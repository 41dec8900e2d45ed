"""Estimates of ops that the library has no vertex for: distances, products of three tensors, searches.

Each is modelled as a program of simpler steps: equal rounds, each a chain of vector operations on n elements of the
busiest tile, preceded by an exchange of the data that this tile needs from others. Whether a device would run the
textbook algorithm is not published. Confidence: estimated. Profiles show these ops as the family "estimated".
"""

from __future__ import annotations

import math

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import OpView, OpWork, costs


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
