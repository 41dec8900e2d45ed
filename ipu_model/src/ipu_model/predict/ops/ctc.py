"""Connectionist temporal classification: recursions of log-adds over time and labels, their gradient, and decoding.

Loss and decoding are custom ops of the captured graph (`ipu_model.capture.device_ops.ctc`).
Symbols: T time steps, N samples, S labels of a target, L = 2 S + 1 states (the labels with blanks around them), C
classes. A recursion is T steps that depend on one another; each takes, for every state, two log-adds of neighbouring
states and a sum with the state's log probability (Graves and others 2006, equations 6 and 10). The loss is one
recursion; the gradient repeats it, runs another one backwards in time and adds the occupancy of states up by class.

Prefix beam search is T steps, too, with W beams. A beam makes C candidates: itself with a blank or a repeat, or with
one label more; a log-add and a sum each. The best W of W C candidates go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.indexing import scatter
from ipu_model.predict.ops.reductions import ordered
from ipu_model.predict.ops.rule import OpView, OpWork, Rule

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
    by_class = scatter(device, rows * problem.classes, 1, rows * problem.states, element)
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
            step = step + device.exchange(2 * pieces * element.bytes)
        looked_up = problem.steps * n
        start = Cycles(compute=vertices.multi_slice(device, looked_up, 0, 1, element))
        yield _Recursion(
            start + device.exchange(looked_up * element.bytes) + step.times(problem.steps), n
        )  # fmt: skip
        parts *= 2


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
    best = ordered(device, candidates, n, problem.samples, element)
    step = Cycles(compute=compute) + best.cycles + device.exchange(n * element.bytes)
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


def cost_ctc_loss(op: OpView) -> OpWork:
    """Cost the loss of each sample."""
    return op.takes(loss(op.device, _alignment(op, 0), op.needed(0).element))


def cost_ctc_loss_gradient(op: OpView) -> OpWork:
    """Cost the gradient of the log probabilities."""
    return op.takes(loss_gradient(op.device, _alignment(op, 1), op.needed(1).element))


def cost_beam_search(op: OpView) -> OpWork:
    """Cost the best paths of each sample."""
    source = op.needed(0)
    steps, samples, classes = source.shape
    problem = BeamSearch(steps, samples, classes, int(op.argument(3)), int(op.argument(4)))
    return op.takes(decoded(op.device, problem, source.element))


def _alignment(op: OpView, first: int) -> Alignment:
    """Return what is aligned, from log probabilities `[T, N, C]` and targets `[N, S]` or all in one row."""
    steps, samples, classes = op.needed(first).shape
    targets = op.needed(first + 1)
    labels = targets.shape[1] if len(targets.shape) == 2 else math.ceil(targets.elements / max(1, samples))
    return Alignment(steps, samples, 2 * labels + 1, classes)


RULES = (
    Rule(("ctc_loss",), cost_ctc_loss),
    Rule(("ctc_loss_backward",), cost_ctc_loss_gradient),
    Rule(("ctc_beam_search",), cost_beam_search),
)
