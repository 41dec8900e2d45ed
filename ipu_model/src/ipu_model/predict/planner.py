"""Convolutions and matrix products: find the fastest plan over the tiles, and its cost.

Ops call `contraction`. The rest of the file follows in the order of calls: serial slices that keep temporary memory in
bounds, the choice among candidates, the cost of a candidate, the candidates of each method, and the ways to cut a
dimension. The methods:

* pointwise: kernel 1 x 1; batch, rows and columns are one field that is cut freely
* rows: the kernel is walked position by position; batch, rows and columns are cut apart
* expanded: kernel positions become input channels (im2col), then pointwise; the input is copied
* expanded columns: kernel columns become input channels, then rows
* product: weight gradient as one matrix product that reduces over batch and positions; both operands are
  transposed, because the reduced dimension must lie innermost
* windows (SLIC), channels (VMAC), dots (HMAC): for few channels in a group, and for very small fields
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import numpy as np

from ipu_model.predict import vertices
from ipu_model.predict.device import DEFAULT_PROPORTION, Cycles, Device, Element, Work
from ipu_model.predict.vertices import Array, Mask, MatrixUnit

SERIAL_STEPS = (2, 4, 8, 16, 32, 64)

# Skip candidates that leave most tiles idle if other candidates use them.
LEAST_SHARE_OF_TILES = 0.25

# Fields for which the vector unit competes with the matrix unit, and fields for which every cut is tried.
TINY_FIELD, SMALL_FIELD = 8, 128

# More partials than these in one or two stages would make too many messages (PopLibs
# lib/poplin/ConvReducePlan.cpp).
MOST_IN_ONE_STAGE, MOST_IN_TWO_STAGES = 16, 125


# -------------------------------------------------------------------------------------- what is asked


INPUTS, WEIGHTS = "inputs", "weights"


class LayerPass(str, Enum):
    """Which of the three contractions of a layer it is."""

    FORWARD = "forward"
    DATA_GRADIENT = "data gradient"
    WEIGHT_GRADIENT = "weight gradient"


@dataclass(frozen=True)
class Problem:
    """One contraction: a convolution of images, or a matrix product, in one of its three passes.

    Sizes are always those of the layer's forward pass; channel counts are those of one of the `groups` groups. Images
    are (rows, columns): a third dimension counts as more rows, a missing one as a single row. A matrix
    product `[m, k] x [k, n]` has m rows in its batch, k input and n output channels, and all else 1. The matrix unit
    takes its operands with the reduced dimension innermost: `transposed` names those of a matrix product, `INPUTS` or
    `WEIGHTS`, that lie the other way round. (Those of a weight gradient always do.)
    """

    which: LayerPass
    groups: int
    batch: int
    in_channels: int
    out_channels: int
    image: tuple[int, int] = (1, 1)
    result: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    element_bytes: int = 2
    transposed: tuple[str, ...] = ()

    @property
    def positions(self) -> int:
        """Positions of the kernel."""
        return math.prod(self.kernel)

    @property
    def samples(self) -> int:
        """Positions of the forward result, batch included."""
        return self.batch * math.prod(self.result)

    @property
    def pixels(self) -> int:
        """Positions of the forward input, batch included."""
        return self.batch * math.prod(self.image)

    @property
    def flops(self) -> int:
        """Multiplications and additions, padding included."""
        return 2 * self.samples * self.groups * self.in_channels * self.out_channels * self.positions

    @property
    def weight_elements(self) -> int:
        """Elements of the weight tensor."""
        return self.groups * self.in_channels * self.out_channels * self.positions

    @property
    def output_elements(self) -> int:
        """Elements of what this pass computes."""
        if self.which is LayerPass.FORWARD:
            return self.samples * self.groups * self.out_channels
        if self.which is LayerPass.DATA_GRADIENT:
            return self.pixels * self.groups * self.in_channels
        return self.weight_elements


def matrix_product(
    m: int, k: int, n: int, element_bytes: int, *, groups: int = 1, transposed: tuple[str, ...] = ()
) -> Problem:
    """Return the product of `groups` pairs of matrices `[m, k]` and `[k, n]`."""
    return Problem(LayerPass.FORWARD, groups, m, k, n, element_bytes=element_bytes, transposed=transposed)


# --------------------------------------------------------------------------------------- the answer


@dataclass(frozen=True)
class Precision:
    """The program's settings for a contraction: half partials, and the share of tile memory for temporary data."""

    half_partials: bool = False
    proportion: float = DEFAULT_PROPORTION


@lru_cache(maxsize=8192)
def contraction(problem: Problem, device: Device, precision: Precision = Precision()) -> Work:
    """Return the work of the fastest plan whose temporary memory stays within the proportion of tile memory.

    If the fastest plan needs more, plans in serial slices compete with plans that need less memory. If no plan fits,
    the bound is doubled until it is twice the tile's memory, then dropped, as PopLibs does after a warning (hardware
    reference, B1: ConvPlan.cpp). A proportion of 0 asks for the plan with the least memory. Slices are equal, so a
    dimension without small factors is never sliced: the product with GPT-2's 50,257 words takes several times the
    proportion it is allowed, and padded to 50,272 words it does not.
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
            # Rounding can make a sliced plan a few cycles faster; the planner would then have sliced it in any case.
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
    """Yield schemes that slice the output channels (for a weight gradient: either kind of channel, or samples)."""
    axes = {
        LayerPass.FORWARD: ("out",),
        LayerPass.DATA_GRADIENT: ("in",),
        LayerPass.WEIGHT_GRADIENT: ("out", "in", "batch"),
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
        for unit in _matrix_units(problem.element_bytes, device, half_partials)
        for split in splits_of(problem, unit, device.chip.tiles)
    ]


def _matrix_units(element_bytes: int, device: Device, half_partials: bool) -> Iterator[MatrixUnit]:
    """Yield the settings of the matrix unit: with half partials it can also use only half of its units."""
    half = half_partials and element_bytes == 2
    units, group, _ = device.chip.matrix_unit(element_bytes, half_partials=half)
    partial_bytes, workers = 2 if half else 4, device.chip.workers
    yield MatrixUnit(element_bytes, partial_bytes, units, group, workers)
    fewer, _, _ = device.chip.matrix_unit(element_bytes, half_partials=False)
    if half and fewer < units:
        yield MatrixUnit(element_bytes, partial_bytes, fewer, group, workers)


def _work(problem: Problem, device: Device, plan: Plan) -> Work:
    """Return the work of a plan, including what the pass needs in addition to the contraction."""
    cycles = Cycles(plan.compute, plan.exchange, plan.phases)
    outputs = plan.outputs
    if problem.which is LayerPass.DATA_GRADIENT:
        cycles = cycles + _weight_transpose(device, problem)
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


def _weight_transpose(device: Device, problem: Problem) -> Cycles:
    """Return the cycles to transpose the weight tensor, which is spread over all tiles."""
    share = problem.weight_elements / device.chip.tiles
    compute = device.constants.weight_transpose_cycles_per_element * share
    return Cycles(compute=compute) + device.exchange(share * problem.element_bytes)


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
    reduced = {LayerPass.FORWARD: "in", LayerPass.DATA_GRADIENT: "out", LayerPass.WEIGHT_GRADIENT: "batch"}[
        problem.which
    ]
    outputs = step.outputs_on_busiest_tile
    if axis == reduced:
        around += vertices.scaled_add(device, outputs, element)
    else:
        around += vertices.dynamic_slice(device, 1, outputs, element)
        outputs *= count
    cycles = (step.cycles + Cycles(compute=around)).times(count)
    plan = f"{step.plan}; {count} serial slices of {axis}"
    return replace(
        step, cycles=cycles, flops=problem.flops, outputs_on_busiest_tile=outputs, plan=plan,
        repeats=step.repeats * count,
    )  # fmt: skip


# --------------------------------------------------------------------------------------- the choice


@dataclass(frozen=True)
class Plan:
    """The chosen candidate: its cycles, temporary bytes, results on the busiest tile, and splits."""

    method: str
    compute: float
    exchange: float
    phases: int
    temporary: float
    outputs: float
    tiles: int
    parts: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The plan in words: its method and the parts of each dimension that is cut."""
        cut = [f"{name} / {count}" for name, count in self.parts if count > 1]
        return f"{self.method}: {', '.join(cut) if cut else 'one tile'}"


def fastest(candidates: Sequence[Candidates], device: Device, limit: float = math.inf) -> Plan | None:
    """Return the candidate of fewest cycles with at most `limit` temporary bytes a tile, or `None`."""
    total = np.concatenate([c.total(device) for c in candidates])
    temporary = np.concatenate([c.temporary for c in candidates])
    allowed = temporary <= limit
    if not allowed.any():
        return None
    return _pick(candidates, int(np.argmin(np.where(allowed, total, np.inf))))


def smallest(candidates: Sequence[Candidates], device: Device) -> Plan:
    """Return the candidate with the least temporary memory, and the fastest of them in a tie."""
    total = np.concatenate([c.total(device) for c in candidates])
    temporary = np.concatenate([c.temporary for c in candidates])
    return _pick(candidates, int(np.lexsort((total, temporary))[0]))


def _pick(candidates: Sequence[Candidates], index: int) -> Plan:
    for found in candidates:
        if index < len(found.compute):
            break
        index -= len(found.compute)
    split = found.split
    parts = {
        "field": int(split.field[index]), "in": int(split.ins[index]), "out": int(split.outs[index]),
        "groups": int(split.groups[index]),
    }  # fmt: skip
    return Plan(
        method=split.method, compute=float(found.compute[index]), exchange=float(found.exchange[index]),
        phases=int(found.phases[index]), temporary=float(found.temporary[index]),
        outputs=float(found.outputs[index]),
        tiles=int(np.prod(list(parts.values()))), parts=tuple(parts.items()),
    )  # fmt: skip


# --------------------------------------------------------------------------- what a candidate costs


@dataclass(frozen=True)
class Split:
    """Candidate splits of one method: arrays of equal length, sizes in elements of the busiest tile.

    `vertex` is in tile cycles; `inputs` and `weights` are the elements that a tile needs, `results` those that it
    computes. `field`, `ins`, `outs` and `groups` are the numbers of parts into which field, input channels (the
    reduction), output channels and conv groups are cut. `copies` are the elements that a tile rearranges beforehand,
    one array for each operand; `in_blocks` tells whether they move in blocks or one by one. The vector unit
    (`vector_unit`) writes results in their final type, the matrix unit writes partials.
    """

    method: str
    unit: MatrixUnit
    vertex: Array
    inputs: Array
    weights: Array
    results: Array
    field: Array
    ins: Array
    outs: Array
    groups: Array
    copies: tuple[Array, ...] = ()
    in_blocks: bool = True
    vector_unit: bool = False


@dataclass(frozen=True)
class Candidates:
    """What each candidate costs: cycles, exchange phases, temporary bytes, results on the busiest tile."""

    split: Split
    compute: Array
    exchange: Array
    phases: Array
    temporary: Array
    outputs: Array

    def total(self, device: Device) -> Array:
        """Return all cycles of each candidate, synchronisation included."""
        return self.compute + self.exchange + self.phases * device.sync_cycles


def evaluate(split: Split, device: Device) -> Candidates:
    """Return cycles and memory of each candidate of `split`."""
    unit, rate = split.unit, device.chip.exchange_bytes_per_cycle
    operands = split.inputs + split.weights
    compute, phases = split.vertex, np.ones_like(split.vertex)
    exchange = _operand_bytes(split, device) / rate
    temporary = operands * unit.element_bytes + split.results * unit.partial_bytes
    for copied in split.copies:
        moved = copied * unit.element_bytes
        compute = compute + vertices.layout_copy(device, moved, unit.element_bytes, in_blocks=split.in_blocks)
        pieces = 0.0 if split.in_blocks else copied * device.constants.exchange_piece_cycles
        exchange = exchange + np.maximum(moved / rate, pieces)
        phases = phases + 1
        temporary = np.maximum(temporary, 2 * moved)
    reduced = reduction(split.results, split.ins, unit, device, converted=not split.vector_unit)
    exchange = exchange + reduced.exchange
    phases = phases + reduced.phases
    return Candidates(
        split=split,
        compute=compute + reduced.compute,
        exchange=exchange + phases * device.constants.exchange_fixed_cycles,
        phases=phases,
        temporary=temporary,
        outputs=reduced.outputs,
    )


def _operand_bytes(split: Split, device: Device) -> Array:
    """Return the bytes that a tile receives from other tiles.

    A tile already holds its own part of each operand. Two neighbours that share an exchange bus and need the same
    inputs (because output channels are split evenly over them) receive them together.
    """
    shared = device.chip.tiles_per_exchange_bus
    at_once = np.where(split.outs % shared == 0, float(shared), 1.0)
    inputs = split.inputs * (1 - 1 / split.outs) / at_once
    weights = split.weights * (1 - 1 / split.field)
    return (inputs + weights) * split.unit.element_bytes


@dataclass(frozen=True)
class PartialSums:
    """Cycles and phases of summing partials over tiles, and the results on the busiest tile afterwards."""

    compute: Array
    exchange: Array
    phases: Array
    outputs: Array

    def total(self, device: Device) -> Array:
        """Return all cycles, including the fixed overhead of each exchange phase."""
        fixed = device.sync_cycles + device.constants.exchange_fixed_cycles
        return self.compute + self.exchange + self.phases * fixed

    def replaced(self, other: PartialSums, where: Mask) -> PartialSums:
        """Return this reduction with the candidates of `other` where `where` holds."""
        return PartialSums(
            np.where(where, other.compute, self.compute),
            np.where(where, other.exchange, self.exchange),
            np.where(where, other.phases, self.phases),
            np.where(where, other.outputs, self.outputs),
        )


def reduction(results: Array, depth: Array, unit: MatrixUnit, device: Device, *, converted: bool = True) -> PartialSums:
    """Return the cost of summing `results` partials per tile over `depth` tiles, in the fastest number of stages.

    A stage adds at most `MOST_IN_ONE_STAGE` partials, two at most `MOST_IN_TWO_STAGES`, to bound the number
    of messages. If no other tile has partials, fp32 results of fp16 operands are only converted. Exchange cycles leave
    out the fixed overhead of each phase.
    """
    alone = depth <= 1
    best = _alone(results, unit) if converted else _nothing(results)
    if alone.all():
        return best
    for stages, most in ((3, math.inf), (2, MOST_IN_TWO_STAGES), (1, MOST_IN_ONE_STAGE)):
        found = _staged(results, depth, stages, unit, device)
        better = ~alone & (depth <= most)
        if stages < 3:
            better &= found.total(device) <= best.total(device)
        best = best.replaced(found, better)
    return best


def _nothing(results: Array) -> PartialSums:
    zero = np.zeros_like(results)
    return PartialSums(zero, zero, zero, results)


def _alone(results: Array, unit: MatrixUnit) -> PartialSums:
    """Return the conversion of partials to results, which costs nothing if both have the same type."""
    if unit.partial_bytes <= unit.element_bytes:
        return _nothing(results)
    zero = np.zeros_like(results)
    return PartialSums(vertices.cast_stage(results, unit.workers), zero, zero, results)


def _staged(results: Array, depth: Array, stages: int, unit: MatrixUnit, device: Device) -> PartialSums:
    compute, exchange = np.zeros_like(results), np.zeros_like(results)
    left, held = depth, results
    for remaining in range(stages, 0, -1):
        # Rounded before it is rounded up: the cube root of 8 is a little more than 2 in floating point.
        ways = np.ceil(np.round(left ** (1 / remaining), 9))
        after = np.ceil(held / ways)
        compute = compute + vertices.reduce_stage(after, ways, unit)
        exchange = exchange + held * unit.partial_bytes / device.chip.exchange_bytes_per_cycle
        left, held = np.ceil(left / ways), after
    return PartialSums(compute, exchange, np.full_like(results, float(stages)), np.ceil(results / depth))


# -------------------------------------------------------------------- the candidates of each method


def splits_of(problem: Problem, unit: MatrixUnit, tiles: int) -> Iterator[Split]:
    """Yield the candidate splits of every method that can compute `problem` on `tiles` tiles."""
    if problem.which is LayerPass.WEIGHT_GRADIENT:
        yield from _weight_gradient(problem, unit, tiles)
    else:
        yield from _image_pass(problem, unit, tiles)
    if problem.groups > 1 and problem.in_channels * problem.out_channels <= 16:
        yield _channels(problem, unit, tiles)


def _image_pass(problem: Problem, unit: MatrixUnit, tiles: int) -> Iterator[Split]:
    """Yield the splits of a forward pass, or of a data gradient, which swaps input and output channels."""
    ins, outs = problem.in_channels, problem.out_channels
    if problem.which is LayerPass.DATA_GRADIENT:
        ins, outs = outs, ins
    if problem.positions == 1:
        # Strided or not, only the sampled points take part.
        field = problem.samples
        copied = problem.transposed
        in_blocks = not copied or _in_blocks(unit, field, ins, outs)
        plain = _pointwise("pointwise", field, ins, outs, problem.groups, unit, tiles, copied)
        yield replace(plain, in_blocks=in_blocks)
        if problem.image == problem.result == (1, 1):
            turned = tuple(WEIGHTS if operand == INPUTS else INPUTS for operand in copied)
            swapped = _pointwise("pointwise, swapped", outs, ins, field, problem.groups, unit, tiles, turned)
            yield replace(swapped, in_blocks=in_blocks)
    else:
        yield _rows("rows", problem, ins, outs, problem.kernel, unit, tiles)
        strided = problem.which is LayerPass.DATA_GRADIENT and problem.stride != (1, 1)
        if not strided:
            pixels = problem.samples if problem.which is LayerPass.FORWARD else problem.pixels
            length = ins * problem.positions
            yield _pointwise("expanded", pixels, length, outs, problem.groups, unit, tiles, copied=(INPUTS,))
            if problem.kernel[1] > 1 and problem.kernel[0] > 1:
                yield _expanded_columns(problem, ins, outs, unit, tiles)
        if _fits_windows(problem, unit):
            yield _windows(problem, unit, tiles)
    if problem.positions == 1 and min(problem.samples, ins, outs) <= TINY_FIELD:
        yield _dots(problem.samples, ins, outs, problem.groups, unit, tiles)


def _weight_gradient(problem: Problem, unit: MatrixUnit, tiles: int) -> Iterator[Split]:
    """Yield the splits of one matrix product over all samples, with either operand as the field."""
    rows, columns = problem.in_channels * problem.positions, problem.out_channels
    in_blocks = _in_blocks(unit, problem.samples)
    for method, field, outs in (("product", rows, columns), ("product, swapped", columns, rows)):
        split = _pointwise(method, field, problem.samples, outs, problem.groups, unit, tiles, (INPUTS, WEIGHTS))
        yield replace(split, in_blocks=in_blocks)


def _in_blocks(unit: MatrixUnit, *lengths: int) -> bool:
    """Whether the transpose vertex can turn operands of these lengths: it moves square blocks of a vector's width.

    The channels of an image always can, since they lie in groups that are filled up.
    """
    return all(length % unit.vector_width == 0 for length in lengths)


def _pointwise(
    method: str, field: int, ins: int, outs: int, groups: int, unit: MatrixUnit, tiles: int,
    copied: tuple[str, ...] = (),
) -> Split:  # fmt: skip
    """Split field, input channels, output channels and groups; the field uses the remaining tiles."""
    in_groups = math.ceil(ins / unit.channel_group)
    out_groups = math.ceil(outs / unit.units)
    g, i, o = grid(distinct(groups, tiles), distinct(in_groups, tiles), distinct(out_groups, tiles))
    keep = g * i * o <= tiles
    g, i, o, cut = _field_cuts(field, g[keep], i[keep], o[keep], tiles)
    gt, gi, go = np.ceil(groups / g), np.ceil(in_groups / i), np.ceil(out_groups / o)
    inputs = cut * gi * unit.channel_group * gt
    weights = gi * unit.channel_group * go * unit.units * gt
    parts = np.ceil(field / cut)
    # Every tile copies its share of the operand as it is laid out for the plan.
    shares = {INPUTS: inputs / o, WEIGHTS: weights / parts}
    return Split(
        method=method, unit=unit,
        vertex=vertices.conv_1x1(cut, gi, go, gt, unit),
        inputs=inputs, weights=weights, results=cut * go * unit.units * gt,
        field=parts, ins=i, outs=o, groups=g, copies=tuple(shares[name] for name in copied),
    )  # fmt: skip


def _field_cuts(field: int, g: Array, i: Array, o: Array, tiles: int) -> tuple[Array, Array, Array, Array]:
    """Return each combination with each useful cut of the field, which uses the remaining tiles.

    Finer cuts reduce every cost except that of the weights, so large fields are cut as finely as possible or not at
    all.
    """
    free = np.minimum(np.floor(tiles / (g * i * o)), field)
    if field <= SMALL_FIELD:
        parts = distinct(field, tiles)
        which, chosen = np.nonzero(parts <= free[:, None])
        return g[which], i[which], o[which], np.ceil(field / parts[chosen])
    cut = np.concatenate([np.ceil(field / free), np.full_like(free, float(field))])
    return np.tile(g, 2), np.tile(i, 2), np.tile(o, 2), cut


def _rows(
    method: str, problem: Problem, ins: int, outs: int, kernel: tuple[int, int], unit: MatrixUnit, tiles: int
) -> Split:
    """Split batch, rows, columns, input and output channels and groups of a k x k contraction."""
    in_groups = math.ceil(ins / unit.channel_group)
    out_groups = math.ceil(outs / unit.units)
    area = problem.result if problem.which is LayerPass.FORWARD else problem.image
    b, h, w, i, o, g = _combinations(tiles, problem.batch, area[0], area[1], in_groups, out_groups, problem.groups)
    bt, ht, wt = np.ceil(problem.batch / b), np.ceil(area[0] / h), np.ceil(area[1] / w)
    gi, go, gt = np.ceil(in_groups / i), np.ceil(out_groups / o), np.ceil(problem.groups / g)
    read, rows, width = _reads(problem, bt, ht, wt)
    inputs = read * gi * unit.channel_group * gt
    positions = kernel[0] * kernel[1]
    results = bt * ht * wt * go * unit.units * gt
    return Split(
        method=method, unit=unit,
        vertex=vertices.conv_nx1(rows, width, bt * ht * wt, gi, go, gt, kernel, unit),
        inputs=inputs, results=results,
        weights=positions * gi * unit.channel_group * go * unit.units * gt,
        field=b * h * w, ins=i, outs=o, groups=g,
    )  # fmt: skip


def _reads(problem: Problem, bt: Array, ht: Array, wt: Array) -> tuple[Array, Array, Array]:
    """Return the pixels a tile reads, and rows and columns that one kernel position works on.

    A strided data gradient reaches only every stride-th row and column from one kernel position.
    """
    (ky, kx), (sy, sx), (dy, dx) = problem.kernel, problem.stride, problem.dilation
    if problem.which is LayerPass.FORWARD:
        high = np.minimum((ht - 1) * sy + (ky - 1) * dy + 1, problem.image[0])
        wide = np.minimum((wt - 1) * sx + (kx - 1) * dx + 1, problem.image[1])
        return bt * high * wide, bt * ht, wt
    high = np.minimum(np.ceil((ht + (ky - 1) * dy) / sy), problem.result[0])
    wide = np.minimum(np.ceil((wt + (kx - 1) * dx) / sx), problem.result[1])
    return bt * high * wide, bt * np.ceil(ht / sy), np.ceil(wt / sx)


def _expanded_columns(problem: Problem, ins: int, outs: int, unit: MatrixUnit, tiles: int) -> Split:
    """Turn the columns of the kernel into input channels of a kernel one column wide."""
    columns = problem.kernel[1]
    plain = _rows("expanded columns", _one_column(problem), ins * columns, outs, (problem.kernel[0], 1), unit, tiles)
    return replace(plain, copies=(plain.inputs / plain.outs,))


def _one_column(problem: Problem) -> Problem:
    (ky, _), (sy, _), (dy, _) = problem.kernel, problem.stride, problem.dilation
    image = (problem.image[0], problem.result[1]) if problem.which is LayerPass.FORWARD else problem.image
    result = problem.result if problem.which is LayerPass.FORWARD else (problem.result[0], problem.image[1])
    return replace(problem, kernel=(ky, 1), stride=(sy, 1), dilation=(dy, 1), image=image, result=result)


def _combinations(
    tiles: int, batch: int, rows: int, columns: int, ins: int, outs: int, groups: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return every way to cut six dimensions so that the number of parts suits the tiles."""
    b, h, w = grid(distinct(batch, tiles), distinct(rows, tiles), distinct(columns, tiles))
    i, o, g = grid(distinct(ins, tiles), distinct(outs, tiles), distinct(groups, tiles))
    area, channels = b * h * w, i * o * g
    first, second = np.nonzero(within(np.multiply.outer(area, channels), tiles, LEAST_SHARE_OF_TILES))
    return b[first], h[first], w[first], i[second], o[second], g[second]


def _fits_windows(problem: Problem, unit: MatrixUnit) -> bool:
    """Whether the SLIC vertex can compute it: fp16, groups of one, two or four channels, stride 1 or 2."""
    channels = (problem.in_channels, problem.out_channels)
    strides_fit = max(problem.stride) <= (2 if problem.which is LayerPass.FORWARD else 1)
    grouped = problem.groups > 1 and channels in ((1, 1), (2, 2), (4, 4))
    return unit.element_bytes == 2 and grouped and strides_fit and problem.dilation == (1, 1)


def _windows(problem: Problem, unit: MatrixUnit, tiles: int) -> Split:
    """Split batch, rows, columns and blocks of four channels of a grouped convolution."""
    area = problem.result if problem.which is LayerPass.FORWARD else problem.image
    blocks = math.ceil(problem.groups * problem.in_channels / 4)
    b, h, w, i, o, g = _combinations(tiles, problem.batch, area[0], area[1], 1, 1, blocks)
    bt, ht, wt = np.ceil(problem.batch / b), np.ceil(area[0] / h), np.ceil(area[1] / w)
    held = np.ceil(blocks / g)
    read, rows, width = _reads(problem, bt, ht, wt)
    stepped = np.ceil(width * max(problem.stride))
    vertex = vertices.conv_slic(rows, stepped, held, problem.kernel, unit)
    weights = held * 4 * problem.in_channels * problem.positions
    return Split(
        method="windows", unit=unit, vertex=vertex, inputs=read * held * 4, weights=weights,
        results=bt * ht * wt * held * 4, field=b * h * w, ins=i, outs=o, groups=g,
    )  # fmt: skip


def _channels(problem: Problem, unit: MatrixUnit, tiles: int) -> Split:
    """Split for the vector unit, channel by channel: groups, the results of a group, and the samples to sum."""
    inner = problem.in_channels * problem.out_channels
    if problem.which is LayerPass.WEIGHT_GRADIENT:
        results, length, most_parts = inner * problem.positions, problem.samples, problem.samples
    else:
        results = problem.output_elements // problem.groups
        per_result = problem.in_channels if problem.which is LayerPass.FORWARD else problem.out_channels
        length, most_parts = problem.positions * per_result, 1
    g, i = grid(distinct(problem.groups, tiles), distinct(most_parts, tiles))
    keep = g * i <= tiles
    g, i, o, rt = _field_cuts(results, g[keep], i[keep], np.ones(int(keep.sum())), tiles)
    gt, lt = np.ceil(problem.groups / g), np.ceil(length / i)
    held, parts = rt * gt, np.ceil(results / rt)
    if problem.which is LayerPass.WEIGHT_GRADIENT:
        inputs, weights = lt * problem.in_channels * gt, lt * problem.out_channels * gt
    else:
        inputs, weights = rt * gt, np.full_like(gt, float(length)) * gt
    return Split(
        method="channels", unit=unit,
        vertex=vertices.conv_vmac(held, lt, unit),
        inputs=inputs, weights=weights, results=held, field=parts, ins=i, outs=o, groups=g, vector_unit=True,
    )  # fmt: skip


def _dots(field: int, ins: int, outs: int, groups: int, unit: MatrixUnit, tiles: int) -> Split:
    """Split for the vector unit, one dot product for each result: groups, channels and field."""
    parts = distinct(ins, min(tiles, TINY_FIELD))
    g, i, o = grid(distinct(groups, tiles), parts, distinct(outs, tiles))
    keep = g * i * o <= tiles
    g, i, o, ft = _field_cuts(field, g[keep], i[keep], o[keep], tiles)
    gt, length, ot = np.ceil(groups / g), np.ceil(ins / i), np.ceil(outs / o)
    held = ft * ot * gt
    return Split(
        method="dots", unit=unit, vertex=vertices.conv_hmac(held, length, unit),
        inputs=ft * length * gt, weights=ot * length * gt, results=held,
        field=np.ceil(field / ft), ins=i, outs=o, groups=g, vector_unit=True,
    )  # fmt: skip


# -------------------------------------------------------------------------- ways to cut a dimension


@lru_cache(maxsize=4096)
def distinct(length: int, most: int) -> Array:
    """Return the useful numbers of parts, at most `most`, for a dimension of `length`.

    Of all numbers that give the same largest part, only the smallest is returned: about 2 sqrt(length) numbers instead
    of `length`, in ascending order.
    """
    counts = np.arange(1, max(1, min(length, most)) + 1, dtype=np.float64)
    sizes = np.unique(np.ceil(length / counts))
    parts = np.unique(np.ceil(length / sizes))
    parts.flags.writeable = False
    return parts


def grid(*axes: Array) -> list[Array]:
    """Return the coordinates of every combination of the values of `axes`, one flat array for each axis."""
    return [mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")]


def within(product: Array, tiles: int, share: float) -> Mask:
    """Select combinations that use at most `tiles` tiles, and at least `share` of the most that any of them uses."""
    allowed = product <= tiles
    busiest = float(product[allowed].max())
    return allowed & (product >= busiest * share)
