"""Prefix beam search: time steps that depend on one another, each with its candidates added up and ordered.

Symbols: T time steps, N samples, C classes, W beams. A beam makes C candidates: itself with a blank or a repeat, or
with one label more; a log-add and a sum each. The best W of W C candidates go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.cost import embedding, vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work


@dataclass(frozen=True)
class BeamSearch:
    """What is decoded: T `steps` of N `samples` with C `classes`, with W `beams`, of which `paths` are returned."""

    steps: int
    samples: int
    classes: int
    beams: int
    paths: int


def decoded(device: Device, problem: BeamSearch, element: Element) -> Work:
    """Return the work of all steps, and of following the paths back to their starts."""
    candidates = problem.samples * problem.beams * problem.classes
    n = device.spread(candidates, element)
    compute = vertices.elementwise(device, n, element, ("log-add", "add"), vertices.BINARY)
    best = embedding.ordered(device, candidates, n, problem.samples, element)
    step = Cycles(compute=compute) + best.cycles + exchange(device, n * element.bytes)
    # A beam remembers its parent and its label in every step.
    kept = device.spread(problem.steps * problem.samples * problem.beams, Element.INT)
    paths = device.spread(problem.samples * problem.paths, Element.INT)
    back = Cycles(compute=vertices.multi_slice(device, paths * problem.steps, 0, 1, Element.INT))
    held = device.spread(problem.samples * problem.paths * problem.steps, Element.INT)
    return Work(
        "ordering", step.times(problem.steps) + back, outputs_on_busiest_tile=held,
        temporary_bytes=best.temporary_bytes + n * element.bytes + 2 * kept * Element.INT.bytes,
        repeats=max(1, problem.steps),
    )  # fmt: skip
