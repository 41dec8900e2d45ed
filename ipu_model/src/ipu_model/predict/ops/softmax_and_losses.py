"""Softmax and its logarithm, and losses, forward and backward; CTC, and the beam search that decodes its output."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.indexing import scatter
from ipu_model.predict.ops.pointwise import chained
from ipu_model.predict.ops.reductions import ordered, reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, costs

_ELEMENTWISE = vertices.chains_of("losses")


@costs("_softmax _safe_softmax _log_softmax")
def cost_softmax(op: OpView) -> OpWork:
    """Cost a softmax or its logarithm along one dimension.

    Maxima, exponentials and sums, and two passes that use them, with one value for each row; sums are taken in fp32.
    """
    source, device = op.needed(0), op.device
    rows = source.elements // max(1, (source.shape or (1,))[op.argument(1, "dim", -1)])
    compute = 2 * vertices.broadcast_rows(device, source.on_tile, source.elements // rows, source.element)
    compute += vertices.elementwise(device, source.on_tile, source.element, ("exp",), vertices.UNARY)
    once = ("log",) if "log" in op.kind else ("reciprocal",)
    held = device.spread(rows, Element.FLOAT)
    compute += vertices.elementwise(device, held, Element.FLOAT, once, vertices.UNARY) + vertices.cast(device, held)
    return _along_rows(op, source, rows, compute, reductions=2)


@costs(
    "_softmax_backward_data _log_softmax_backward_data",
    words={"_softmax_backward_data": "softmax backward", "_log_softmax_backward_data": "log softmax backward"},
)
def cost_softmax_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a softmax: three passes, one of them with the sum of each row."""
    output, device = op.needed(1), op.device
    rows = output.elements // max(1, (output.shape or (1,))[op.argument(2, "dim", -1)])
    compute = 2 * vertices.elementwise(device, output.on_tile, output.element, ("add",), vertices.BINARY)
    compute += vertices.broadcast_rows(device, output.on_tile, output.elements // rows, output.element)
    return _along_rows(op, output, rows, compute, reductions=1)


def _along_rows(op: OpView, source: Operand, rows: int, compute: float, reductions: int) -> OpWork:
    device, n = op.device, source.on_tile
    row_sum = reduced(device, source.elements, n, rows, source.element).cycles
    # What was found for each row goes back to its elements.
    back = device.exchange(device.spread(rows, Element.FLOAT) * 4)
    cycles = Cycles(compute=compute)
    for _ in range(reductions):
        cycles = cycles + row_sum + back
    work = Work("softmax", cycles, temporary_bytes=n * source.element.bytes, outputs_on_busiest_tile=n)
    return op.takes(work, source.layout)


@costs("nll_loss_forward nll_loss2d_forward", words="negative log-likelihood")
def cost_loss(op: OpView) -> OpWork:
    """Cost the negative log likelihood of integer targets: a one-hot mask, a product, two reductions."""
    source, target, device = op.needed(0), op.needed(1), op.device
    n, element, rows = source.on_tile, source.element, target.elements
    cycles = _one_hot(op, source, rows, ("add",), vertices.BINARY)
    cycles = cycles + reduced(device, source.elements, n, rows, element).cycles
    cycles = cycles + reduced(device, rows, device.spread(rows, element), 1, element).cycles
    return op.takes(Work("loss", cycles, temporary_bytes=n * element.bytes, outputs_on_busiest_tile=1))


@costs("nll_loss_backward nll_loss2d_backward", words="negative log-likelihood backward")
def cost_loss_gradient(op: OpView) -> OpWork:
    """Cost the gradient of the negative log likelihood: minus the scaled one-hot mask."""
    source, target = op.needed(1), op.needed(2)
    cycles = _one_hot(op, source, target.elements, ("scale",), vertices.UNARY_IN_PLACE)
    return op.takes(Work("loss", cycles, outputs_on_busiest_tile=source.on_tile), source.layout)


def _one_hot(op: OpView, source: Operand, rows: int, chain: tuple[str, ...], overheads: vertices.Overheads) -> Cycles:
    """Return the cycles of writing a one for the label of each row into zeros, and of `chain` on all elements."""
    device, labels = op.device, op.device.spread(rows, Element.INT)
    encode = vertices.multi_slice(device, 1, labels, 1, Element.HALF)
    compute = vertices.fill(device, source.on_tile, source.element) + encode
    compute += vertices.elementwise(device, source.on_tile, source.element, chain, overheads)
    return Cycles(compute=compute) + device.exchange(labels * 4)


@costs(*_ELEMENTWISE)
def cost_elementwise_loss(op: OpView) -> OpWork:
    work, layout = chained(op, _ELEMENTWISE[op.kind])
    elements, outputs = max(operand.elements for operand in op.operands()), op.output().elements
    if outputs >= elements:
        return op.takes(work, layout)
    return op.takes(reduced(op.device, elements, layout.on_tile, outputs, op.element).plus(work.cycles))


# ----------------------------------------------------------------------------------------- CTC
#
# Loss and decoding are custom ops of the captured graph (`ipu_model.capture.device_ops.ctc`). Symbols: T time steps, N
# samples, S labels of a target, L = 2 S + 1 states (the labels with blanks around them), C classes. A recursion is T
# steps that depend on one another; each takes, for every state, two log-adds of neighbouring states and a sum with the
# state's log probability (Graves and others 2006, equations 6 and 10). The loss is one recursion; the gradient repeats
# it, runs another one backwards in time and adds the occupancy of states up by class.
#
# Prefix beam search is T steps, too, with W beams. A beam makes C candidates: itself with a blank or a repeat, or with
# one label more; a log-add and a sum each. The best W of W C candidates go on.


@dataclass(frozen=True)
class _Alignment:
    """What is aligned: T `steps` of N `samples` with L `states` each, made of C `classes`."""

    steps: int
    samples: int
    states: int
    classes: int
    element: Element


def _alignment(op: OpView, first: int) -> _Alignment:
    """Return what is aligned, from log probabilities `[T, N, C]` and targets `[N, S]` or all in one row."""
    source, targets = op.needed(first), op.needed(first + 1)
    steps, samples, classes = source.shape
    labels = targets.shape[1] if len(targets.shape) == 2 else math.ceil(targets.elements / max(1, samples))
    return _Alignment(steps, samples, 2 * labels + 1, classes, source.element)


@costs("ctc_loss")
def cost_ctc_loss(op: OpView) -> OpWork:
    """Cost the losses of all samples: one recursion that keeps its last step only."""
    problem = _alignment(op, 0)
    recursion, states = _fastest_recursion(op.device, problem)
    last = vertices.elementwise(op.device, 1, problem.element, ("log-add", "negate"), vertices.BINARY)
    work = Work(
        "loss",
        recursion + Cycles(compute=last),
        temporary_bytes=(problem.steps + 2) * states * problem.element.bytes,
        outputs_on_busiest_tile=op.device.spread(problem.samples, problem.element),
        repeats=max(1, problem.steps),
    )
    return op.takes(work)


@costs("ctc_loss_backward")
def cost_ctc_loss_gradient(op: OpView) -> OpWork:
    """Cost the gradient of the log probabilities: two recursions, all steps of which are kept, and sums by class."""
    device, problem = op.device, _alignment(op, 1)
    element = problem.element
    recursion, states = _fastest_recursion(device, problem)
    kept, rows = problem.steps * states, problem.steps * problem.samples
    by_class = scatter(device, rows * problem.classes, 1, rows * problem.states, element)
    held = device.spread(rows * problem.classes, element)
    compute = vertices.elementwise(device, kept, element, ("add", "add", "exp"), vertices.BINARY)
    compute += vertices.elementwise(device, held, element, ("exp", "add", "scale"), vertices.BINARY)
    work = Work(
        "loss",
        recursion.times(2) + by_class.cycles + Cycles(compute=compute),
        temporary_bytes=max(3.0 * kept * element.bytes, by_class.temporary_bytes),
        outputs_on_busiest_tile=held,
        repeats=max(1, problem.steps),
    )
    return op.takes(work)


def _fastest_recursion(device: Device, problem: _Alignment) -> tuple[Cycles, int]:
    """Return the fastest recursion with the states of a sample on one tile, on two, on four and so on.

    Tiles that share a sample exchange the two states at each border before every step. Each tile first looks up the
    log probabilities of its states. The second result is the number of states on the busiest tile.
    """
    chain, element, recursions = ("log-add", "log-add", "add"), problem.element, []
    most_parts = max(1, min(problem.states, device.chip.tiles // max(1, problem.samples)))
    for parts in (2**power for power in range(most_parts.bit_length())):
        pieces = math.ceil(problem.samples * parts / device.chip.tiles)
        states = pieces * math.ceil(problem.states / parts)
        step = Cycles(compute=vertices.elementwise(device, states, element, chain, vertices.BINARY, extra_loads=2))
        if parts > 1:
            step = step + device.exchange(2 * pieces * element.bytes)
        looked_up = problem.steps * states
        start = Cycles(compute=vertices.multi_slice(device, looked_up, 0, 1, element))
        recursions.append((start + device.exchange(looked_up * element.bytes) + step.times(problem.steps), states))
    return min(recursions, key=lambda recursion: device.total(recursion[0]))


@costs("ctc_beam_search")
def cost_beam_search(op: OpView) -> OpWork:
    """Cost the best paths of each sample: all steps, and following the paths back to their starts."""
    source, device = op.needed(0), op.device
    (steps, samples, classes), element = source.shape, source.element
    beams, paths = int(op.argument(3)), int(op.argument(4))
    candidates = samples * beams * classes
    n = device.spread(candidates, element)
    compute = vertices.elementwise(device, n, element, ("log-add", "add"), vertices.BINARY)
    best = ordered(device, candidates, n, samples, element)
    step = Cycles(compute=compute) + best.cycles + device.exchange(n * element.bytes)
    # A beam remembers its parent and its label in every step.
    kept = device.spread(steps * samples * beams, Element.INT)
    followed = device.spread(samples * paths, Element.INT) * steps
    work = Work(
        "ordering",
        step.times(steps) + Cycles(compute=vertices.multi_slice(device, followed, 0, 1, Element.INT)),
        temporary_bytes=best.temporary_bytes + n * element.bytes + 2 * kept * Element.INT.bytes,
        outputs_on_busiest_tile=device.spread(samples * paths * steps, Element.INT),
        repeats=max(1, steps),
    )
    return op.takes(work)
