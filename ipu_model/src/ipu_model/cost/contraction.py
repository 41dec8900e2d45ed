"""Convolutions and matrix products: what the fastest plan over the tiles costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ipu_model.cost import vertices
from ipu_model.cost.candidates import Candidates, Numbers, evaluate
from ipu_model.cost.copies import weight_transpose
from ipu_model.cost.device import Device, Element
from ipu_model.cost.plans import splits_of
from ipu_model.cost.problem import Pass, Problem, matrix_product
from ipu_model.cost.search import Plan, fastest, smallest
from ipu_model.cost.work import Cycles, Work

__all__ = ["DEFAULT_PROPORTION", "Pass", "Precision", "Problem", "contraction", "in_slices", "matrix_product"]

# PopLibs' default for convolutions and matrix products.
DEFAULT_PROPORTION = 0.6

SERIAL_STEPS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Precision:
    """What a program asks of a contraction: half partials, and a share of tile memory for temporaries."""

    half_partials: bool = False
    proportion: float = DEFAULT_PROPORTION


@lru_cache(maxsize=8192)
def contraction(problem: Problem, device: Device, precision: Precision = Precision()) -> Work:
    """Return the work of the fastest plan whose temporary memory keeps within the proportion of a tile's.

    If the plan that is fastest of all does not, plans in serial slices compete with tighter ones. If none
    does, the bound is doubled until it is twice the tile's memory, then dropped. A proportion of 0 asks for
    the least memory.
    """
    if problem.flops == 0:
        return Work("contraction")
    candidates = _candidates(problem, device, precision.half_partials)
    best = fastest(candidates, device)
    assert best is not None, "without a limit there is always a fastest plan"
    bound = precision.proportion * device.chip.tile_bytes
    if best.temporary <= bound:
        return _work(problem, device, best)
    schemes = [_Scheme(problem, candidates), *_serial_schemes(problem, device, precision.half_partials)]
    if bound == 0:
        return min((s.smallest(device) for s in schemes), key=lambda work: work.temporary_bytes)
    unbound = _work(problem, device, best)
    while bound < 2 * device.chip.tile_bytes:
        fitting = [work for s in schemes if (work := s.fastest(device, bound)) is not None]
        if fitting:
            chosen = min(fitting, key=lambda work: device.total(work.cycles))
            # Slicing can win a few cycles by rounding; the planner would then have sliced anyhow.
            faster = device.total(chosen.cycles) < device.total(unbound.cycles)
            return replace(chosen, cycles=unbound.cycles) if faster else chosen
        bound *= 2
    return unbound


@dataclass(frozen=True)
class _Scheme:
    """The candidates of `problem` in one piece, or of one of `count` slices along `axis`."""

    problem: Problem
    candidates: list[Candidates]
    axis: str = ""
    count: int = 1

    def fastest(self, device: Device, limit: float) -> Work | None:
        plan = fastest(self.candidates, device, limit)
        return None if plan is None else self._work(device, plan)

    def smallest(self, device: Device) -> Work:
        return self._work(device, smallest(self.candidates, device))

    def _work(self, device: Device, plan: Plan) -> Work:
        if self.count == 1:
            return _work(self.problem, device, plan)
        step = _work(_slice_of(self.problem, self.axis, self.count), device, plan)
        return _repeated(self.problem, step, self.axis, self.count, device)


def _serial_schemes(problem: Problem, device: Device, half_partials: bool) -> Iterator[_Scheme]:
    """Yield schemes that compute output channels (weight gradient: either, or samples) in slices."""
    axes = {
        Pass.FORWARD: ("out",),
        Pass.DATA_GRADIENT: ("in",),
        Pass.WEIGHT_GRADIENT: ("out", "in", "batch"),
    }[problem.which]
    for axis in axes:
        for count in SERIAL_STEPS:
            if _length(problem, axis) % count == 0:
                step = _slice_of(problem, axis, count)
                yield _Scheme(problem, _candidates(step, device, half_partials), axis, count)


def in_slices(problem: Problem, axis: str, count: int, device: Device, precision: Precision = Precision()) -> Work:
    """Return the work of `problem` cut into `count` equal slices that run one after another.

    `axis` is "batch", "in" (the reduced dimension of a product: results are added up) or "out".
    """
    step = _slice_of(problem, axis, count)
    return _repeated(problem, contraction(step, device, precision), axis, count, device)


def _candidates(problem: Problem, device: Device, half_partials: bool) -> list[Candidates]:
    return [
        evaluate(split, device)
        for numbers in _numbers(problem.element_bytes, device, half_partials)
        for split in splits_of(problem, numbers, device.chip.tiles)
    ]


def _numbers(element_bytes: int, device: Device, half_partials: bool) -> Iterator[Numbers]:
    """Yield the settings of the matrix unit: with half partials it can also run with half of its units."""
    half = half_partials and element_bytes == 2
    units, group, _ = device.chip.matrix_unit(element_bytes, half_partials=half)
    partial_bytes = 2 if half else 4
    yield Numbers(element_bytes, partial_bytes, units, group)
    fewer, _, _ = device.chip.matrix_unit(element_bytes, half_partials=False)
    if half and fewer < units:
        yield Numbers(element_bytes, partial_bytes, fewer, group)


def _work(problem: Problem, device: Device, plan: Plan) -> Work:
    """Return the work of a plan, with what the pass needs besides the contraction itself."""
    cycles = Cycles(plan.compute, plan.exchange, plan.phases)
    outputs = plan.outputs
    if problem.which is Pass.DATA_GRADIENT:
        cycles = cycles + weight_transpose(device, problem.weight_elements * problem.element_bytes)
        if problem.positions == 1 and problem.pixels > problem.samples:
            # One position in stride x stride has a gradient, the others are filled with zeros.
            outputs *= problem.pixels / problem.samples
            element = _element(problem)
            filled = device.spread(problem.output_elements, element)
            cycles = cycles + Cycles(compute=vertices.fill(device, filled, element))
    return Work(
        family="contraction", cycles=cycles, temporary_bytes=plan.temporary, flops=problem.flops,
        outputs_on_busiest_tile=outputs, plan=plan.text,
    )  # fmt: skip


def _element(problem: Problem) -> Element:
    return Element.HALF if problem.element_bytes == 2 else Element.FLOAT


def _length(problem: Problem, axis: str) -> int:
    return {"batch": problem.batch, "in": problem.in_channels, "out": problem.out_channels}[axis]


def _slice_of(problem: Problem, axis: str, count: int) -> Problem:
    length = -(-_length(problem, axis) // count)
    if axis == "batch":
        return replace(problem, batch=length)
    return replace(problem, in_channels=length) if axis == "in" else replace(problem, out_channels=length)


def _repeated(problem: Problem, step: Work, axis: str, count: int, device: Device) -> Work:
    """Return `count` steps, each taking its slice and putting its results in place or adding them up."""
    element = _element(problem)
    sliced = device.spread(problem.weight_elements // count, element)
    around = vertices.dynamic_slice(device, 1, sliced, element)
    reduced = {Pass.FORWARD: "in", Pass.DATA_GRADIENT: "out", Pass.WEIGHT_GRADIENT: "batch"}[problem.which]
    outputs = step.outputs_on_busiest_tile
    if axis == reduced:
        around += vertices.scaled_add(device, outputs, element)
    else:
        around += vertices.dynamic_slice(device, 1, outputs, element)
        outputs *= count
    cycles = (step.cycles + Cycles(compute=around)).times(count)
    plan = f"{step.plan}; {count} serial slices of {axis}"
    return replace(step, cycles=cycles, flops=problem.flops, outputs_on_busiest_tile=outputs, plan=plan)
