"""Convolutions and matrix products: what the cheapest plan over the tiles costs, whatever surrounds it included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ipu_model.cost import vertices
from ipu_model.cost.candidates import Candidates, Numbers, evaluate
from ipu_model.cost.copies import weight_transpose
from ipu_model.cost.device import Device, Element
from ipu_model.cost.plans import splits_of
from ipu_model.cost.problem import Pass, Problem, matrix_product
from ipu_model.cost.search import Plan, cheapest, fastest
from ipu_model.cost.work import Cycles, Work

__all__ = ["DEFAULT_PROPORTION", "Pass", "Precision", "Problem", "contraction", "in_slices", "matrix_product"]

# PopLibs' default for convolutions and matrix products.
DEFAULT_PROPORTION = 0.6

SERIAL_STEPS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Precision:
    """What a program asks of a contraction: half partials, and the share of tile memory for temporary data."""

    half_partials: bool = False
    proportion: float = DEFAULT_PROPORTION


@lru_cache(maxsize=8192)
def contraction(problem: Problem, device: Device, precision: Precision = Precision()) -> Work:
    """Return the work of the cheapest plan for `problem`.

    If memory forbids the plan that would be fastest, plans in serial slices compete with tighter ones.
    """
    bound = precision.proportion * device.chip.tile_bytes
    candidates = _candidates(problem, device, precision.half_partials)
    best = fastest(candidates, device)
    if best.temporary <= bound:
        return _work(problem, device, best)
    plan = cheapest(candidates, device, bound)
    work = _work(problem, device, plan)
    fitting = [work] if plan.temporary <= bound else []
    if bound > 0:
        fitting += [s for s in _serial(problem, device, precision) if s.temporary_bytes <= bound]
    if not fitting:
        return work
    chosen = min(fitting, key=lambda w: device.total(w.cycles))
    unbound = _work(problem, device, best)
    # Slicing can win a few cycles by rounding; the planner would then have sliced anyhow.
    return chosen if device.total(chosen.cycles) >= device.total(unbound.cycles) else replace(chosen, cycles=unbound.cycles)


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
            element = Element.HALF if problem.element_bytes == 2 else Element.FLOAT
            cycles = cycles + Cycles(compute=vertices.fill(device, outputs, element))
    return Work(
        family="contraction", cycles=cycles, temporary_bytes=plan.temporary, flops=problem.flops,
        outputs_on_busiest_tile=outputs, plan=plan.text,
    )  # fmt: skip


def _serial(problem: Problem, device: Device, precision: Precision) -> Iterator[Work]:
    """Yield plans that compute output (weight gradient: also input) channels in slices."""
    axes = ("out", "in") if problem.which is Pass.WEIGHT_GRADIENT else (_output_axis(problem),)
    for axis in axes:
        for count in SERIAL_STEPS:
            if _length(problem, axis) % count == 0:
                step = _slice_of(problem, axis, count)
                bound = precision.proportion * device.chip.tile_bytes
                plan = cheapest(_candidates(step, device, precision.half_partials), device, bound)
                yield _repeated(problem, _work(step, device, plan), axis, count, device)


def _output_axis(problem: Problem) -> str:
    return "in" if problem.which is Pass.DATA_GRADIENT else "out"


def _length(problem: Problem, axis: str) -> int:
    return {"batch": problem.batch, "in": problem.in_channels, "out": problem.out_channels}[axis]


def _slice_of(problem: Problem, axis: str, count: int) -> Problem:
    name = {"batch": "batch", "in": "in_channels", "out": "out_channels"}[axis]
    return replace(problem, **{name: -(-_length(problem, axis) // count)})


def _repeated(problem: Problem, step: Work, axis: str, count: int, device: Device) -> Work:
    """Return `count` steps, each with taking its slice and putting its results in place (or adding them up)."""
    element = Element.HALF if problem.element_bytes == 2 else Element.FLOAT
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
