"""Connectionist temporal classification: recursions of log-adds over time and labels, and their gradient.

Symbols: T time steps, N samples, S labels of a target, L = 2 S + 1 states (the labels with blanks around them), C
classes. A recursion is T steps that depend on one another; each takes, for every state, two log-adds of neighbouring
states and a sum with the state's log probability (Graves and others 2006, equations 6 and 10). The loss is one
recursion; the gradient repeats it, runs another one backwards in time and adds the occupancy of states up by class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.cost import embedding, vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work

_STEP = ("log-add", "log-add", "add")


@dataclass(frozen=True)
class Alignment:
    """What is aligned: T `steps` of N `samples` with L `states` each, made of C `classes`."""

    steps: int
    samples: int
    states: int
    classes: int


def loss(device: Device, problem: Alignment, element: Element) -> Work:
    """Return the work of the losses of all samples: one recursion that keeps its last step only."""
    best = min(_recursions(device, problem, element), key=lambda found: device.total(found.cycles))
    last = vertices.elementwise(device, 1, element, ("log-add", "negate"), vertices.BINARY)
    return Work(
        "loss", best.cycles + Cycles(compute=last), temporary_bytes=(problem.steps + 2) * best.states * element.bytes,
        outputs_on_busiest_tile=device.spread(problem.samples, element), repeats=max(1, problem.steps),
    )  # fmt: skip


def loss_gradient(device: Device, problem: Alignment, element: Element) -> Work:
    """Return the work of the gradient: two recursions, all steps of which are kept, and sums by class."""
    best = min(_recursions(device, problem, element), key=lambda found: device.total(found.cycles))
    kept = problem.steps * best.states
    rows = problem.steps * problem.samples
    by_class = embedding.scatter(device, rows * problem.classes, 1, rows * problem.states, element)
    held = device.spread(rows * problem.classes, element)
    compute = vertices.elementwise(device, kept, element, ("add", "add", "exp"), vertices.BINARY)
    compute += vertices.elementwise(device, held, element, ("exp", "add", "scale"), vertices.BINARY)
    return Work(
        "loss", best.cycles.times(2) + by_class.cycles + Cycles(compute=compute),
        temporary_bytes=max(3.0 * kept * element.bytes, by_class.temporary_bytes), outputs_on_busiest_tile=held,
        repeats=max(1, problem.steps),
    )  # fmt: skip


@dataclass(frozen=True)
class _Recursion:
    """One way to spread a recursion over tiles: its cycles, and the states on the busiest tile."""

    cycles: Cycles
    states: int


def _recursions(device: Device, problem: Alignment, element: Element) -> Iterator[_Recursion]:
    """Yield a recursion with the states of a sample on one tile, on two, on four and so on.

    Tiles that share a sample exchange the two states at each border before every step. Each tile first looks up the
    log probabilities of its states.
    """
    parts = 1
    while parts <= max(1, min(problem.states, device.chip.tiles // max(1, problem.samples))):
        pieces = math.ceil(problem.samples * parts / device.chip.tiles)
        n = pieces * math.ceil(problem.states / parts)
        step = Cycles(compute=vertices.elementwise(device, n, element, _STEP, vertices.BINARY, extra_loads=2))
        if parts > 1:
            step = step + exchange(device, 2 * pieces * element.bytes)
        looked_up = problem.steps * n
        start = Cycles(compute=vertices.multi_slice(device, looked_up, 0, 1, element))
        yield _Recursion(
            start + exchange(device, looked_up * element.bytes) + step.times(problem.steps), n
        )  # fmt: skip
        parts *= 2
