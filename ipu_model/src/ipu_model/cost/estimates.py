"""Estimates of ops that the library has no vertex for: rounds of plain vector work that depend on one another.

Transforms, factorisations, searches and distances are programs of simpler steps. R rounds, each a chain of vector
operations on n elements of the busiest tile, and what that tile has to hear of other tiles before it starts. The
number of rounds and the chain are those of the textbook algorithm (named at each rule); that a device would run just
that algorithm is not published. Confidence: estimated. Profiles show these ops as the family "estimated".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work

FAMILY = "estimated"


@dataclass(frozen=True)
class Rounds:
    """`count` rounds on `elements` each, with the chain `ops` of vector operations.

    `received` is how many elements the busiest tile gets before a round, from how many it works on: all of them,
    or those of a row and of a column of a square piece.
    """

    count: int
    elements: int
    ops: tuple[str, ...]
    received: str = "all"


def estimated(device: Device, rounds: Rounds, element: Element, outputs: int) -> Work:
    """Return the work of `rounds` that leave `outputs` elements, laid out evenly."""
    n = device.spread(max(1, rounds.elements), element)
    heard = n if rounds.received == "all" else min(n, 2 * math.ceil(math.sqrt(n)))
    step = Cycles(compute=vertices.elementwise(device, n, element, rounds.ops, vertices.BINARY))
    step += exchange(device, heard * element.bytes)
    count = max(1, rounds.count)
    return Work(
        FAMILY, step.times(count), temporary_bytes=(n + heard) * element.bytes,
        outputs_on_busiest_tile=device.spread(outputs, element), repeats=count,
    )  # fmt: skip
