"""Sets of points: farthest point sampling, and nearest neighbours by comparing everything with everything.

Each is one custom op of the captured graph (`ipu_model.capture.device_ops.points`). Symbols: P points, F features of
each, S samples, K picks of the sample with most of them; n rows, m rows to find the nearest in. A distance is a
subtraction and a square of every feature, added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.reductions import arg_reduced
from ipu_model.predict.ops.rule import OpView, OpWork, Rule

_DISTANCE = ("add", "square", "add")


@dataclass(frozen=True)
class Sampling:
    """What is sampled: P `points` of F `features` in S `samples`, in K `picks` that depend on one another."""

    points: int
    features: int
    samples: int
    picks: int


@dataclass(frozen=True)
class Neighbours:
    """What is compared: n `rows` with m `others`, of F `features`."""

    rows: int
    others: int
    features: int


def farthest(device: Device, problem: Sampling, element: Element) -> Work:
    """Return the work of K picks: the point just picked goes to all tiles, which find the one farthest from all picks.

    Samples are worked on at the same time; points stay where they are.
    """
    n = device.spread(problem.points, element)
    compute = vertices.elementwise(device, n * problem.features, element, _DISTANCE, vertices.BINARY)
    compute += vertices.elementwise(device, n, element, ("maximum",), vertices.BINARY)
    place = arg_reduced(device, n, problem.samples)
    sent = device.exchange(problem.features * element.bytes * min(n, problem.samples))
    step = Cycles(compute=compute) + sent + place.cycles
    held = device.spread(problem.picks * problem.samples, Element.INT)
    return Work(
        "points", step.times(problem.picks), temporary_bytes=(n * (problem.features + 1)) * element.bytes,
        outputs_on_busiest_tile=held, repeats=max(1, problem.picks),
    )  # fmt: skip


def nearest(device: Device, problem: Neighbours, element: Element) -> Work:
    """Return the work of finding the nearest of m rows for each of n: the best way to cut both over the tiles."""
    return min(_cuts(device, problem, element), key=lambda work: device.total(work.cycles))


def _cuts(device: Device, problem: Neighbours, element: Element) -> Iterator[Work]:
    """Yield the work with the m rows on one tile, on two, on four and so on; tiles that share n rows compare results.

    Each tile receives its rows of both sets and keeps the distances of one of its n rows at a time.
    """
    parts = 1
    while parts <= max(1, min(problem.others, device.chip.tiles)):
        rows = math.ceil(problem.rows / max(1, min(problem.rows, device.chip.tiles // parts)))
        others = math.ceil(problem.others / parts)
        pairs = rows * others
        received = (rows + others) * problem.features * element.bytes
        compute = vertices.elementwise(device, pairs * problem.features, element, _DISTANCE, vertices.BINARY)
        compute += vertices.arg_reduce(device, pairs)
        cycles = Cycles(compute=compute) + device.exchange(received)
        if parts > 1:
            found = device.spread(problem.rows, Element.INT)
            compared = Cycles(compute=vertices.arg_reduce(device, found * parts))
            cycles = cycles + device.exchange(8 * found * parts) + compared
        held = device.spread(problem.rows, Element.INT)
        yield Work("points", cycles, temporary_bytes=received + others * element.bytes, outputs_on_busiest_tile=held)
        parts *= 2


def cost_farthest(op: OpView) -> OpWork:
    """Cost picking points one after another."""
    source, counts = op.needed(0), op.argument(2)
    rows, *features = source.shape
    problem = Sampling(rows, math.prod(features), len(counts), max(counts))
    return op.takes(farthest(op.device, problem, source.element))


def cost_nearest(op: OpView) -> OpWork:
    """Cost comparing every row with every other."""
    x, y = op.needed(0), op.needed(1)
    problem = Neighbours(x.shape[0], y.shape[0], x.shape[1])
    return op.takes(nearest(op.device, problem, x.element))


RULES = (Rule(("farthest_points",), cost_farthest), Rule(("nearest_points",), cost_nearest))
