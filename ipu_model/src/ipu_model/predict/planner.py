"""Convolutions and matrix products: find the fastest plan over the tiles, and its cost.

Ops call `contraction`; the rest of the file follows in the order of calls. The methods:

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ipu_model.predict import vertices
from ipu_model.predict.device import DEFAULT_PROPORTION, Cycles, Device, Element, Work
from ipu_model.predict.vertices import Array, MatrixUnit

SERIAL_STEPS = (2, 4, 8, 16, 32, 64)
# Skip candidates that leave most tiles idle if other candidates use them.
LEAST_SHARE_OF_TILES = 0.25
# Fields for which the vector unit competes with the matrix unit, and fields for which every cut is tried.
TINY_FIELD, SMALL_FIELD = 8, 128

# More partials than these in one or two stages would make too many messages (PopLibs
# lib/poplin/ConvReducePlan.cpp).
MOST_IN_ONE_STAGE, MOST_IN_TWO_STAGES = 16, 125

INPUTS, WEIGHTS = "inputs", "weights"


class LayerPass(str, Enum):
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
    def element(self) -> Element:
        return Element.HALF if self.element_bytes == 2 else Element.FLOAT

    @property
    def positions(self) -> int:
        return math.prod(self.kernel)

    @property
    def area(self) -> tuple[int, int]:
        return self.result if self.which is LayerPass.FORWARD else self.image

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
        return self.groups * self.in_channels * self.out_channels * self.positions

    @property
    def output_elements(self) -> int:
        if self.which is LayerPass.FORWARD:
            return self.samples * self.groups * self.out_channels
        if self.which is LayerPass.DATA_GRADIENT:
            return self.pixels * self.groups * self.in_channels
        return self.weight_elements


def matrix_product(
    m: int, k: int, n: int, element_bytes: int, *, groups: int = 1, transposed: tuple[str, ...] = ()
) -> Problem:
    return Problem(LayerPass.FORWARD, groups, m, k, n, element_bytes=element_bytes, transposed=transposed)


@lru_cache(maxsize=8192)
def contraction(
    problem: Problem, device: Device, half_partials: bool = False, proportion: float = DEFAULT_PROPORTION
) -> Work:
    """Return the work of the fastest plan whose temporary memory stays within the proportion of tile memory.

    If the fastest plan needs more, plans in equal serial slices compete with plans that need less memory. If none fits,
    the bound is doubled until it is twice the tile's memory, then dropped, as PopLibs does after a warning (hardware
    reference, B1: ConvPlan.cpp). A proportion of 0 asks for the plan with the least memory.
    """
    if problem.flops == 0:
        return Work("contraction")
    whole = _Scheme(problem, device, half_partials)
    fastest = whole.fastest()
    assert fastest is not None, "without a limit there is always a fastest plan"
    bound = proportion * device.chip.tile_bytes
    if fastest.temporary_bytes <= bound:
        return fastest
    schemes = [whole]
    schemes += [
        _Scheme(problem, device, half_partials, axis, count)
        for axis in _SERIAL_AXES[problem.which]
        for count in SERIAL_STEPS
        if getattr(problem, _SIZES[axis]) % count == 0
    ]
    if bound == 0:
        return min((scheme.smallest() for scheme in schemes), key=lambda work: work.temporary_bytes)
    while bound < 2 * device.chip.tile_bytes:
        fitting = [work for scheme in schemes if (work := scheme.fastest(bound)) is not None]
        if fitting:
            chosen = min(fitting, key=lambda work: device.total(work.cycles))
            # Rounding can make a sliced plan a few cycles faster; the planner would then have sliced it in any case.
            faster = device.total(chosen.cycles) < device.total(fastest.cycles)
            return replace(chosen, cycles=fastest.cycles) if faster else chosen
        bound *= 2
    return fastest


class _Scheme:
    """The candidates of `problem` in one piece, or of one of `count` equal slices along `axis`."""

    def __init__(self, problem: Problem, device: Device, half_partials: bool, axis: str = "", count: int = 1) -> None:
        self._problem, self._device, self._axis, self._count = problem, device, axis, count
        self._step = problem if count == 1 else slice_of(problem, axis, count)
        chip, size, half = device.chip, problem.element_bytes, half_partials and problem.element_bytes == 2
        # With half partials, the matrix unit can also use only half of its units.
        settings = dict.fromkeys(chip.matrix_unit(size, half_partials=partials) for partials in (half, False))
        units = [MatrixUnit(size, 2 if half else 4, count, group, chip.workers) for count, group, _ in settings]
        splits = (split for unit in units for split in splits_of(self._step, unit, chip.tiles))
        self._candidates = [evaluate(split, device) for split in splits]
        self._total = np.concatenate([candidates.costs.total(device) for candidates in self._candidates])
        self._temporary = np.concatenate([candidates.temporary_bytes for candidates in self._candidates])

    def fastest(self, limit: float = math.inf) -> Work | None:
        allowed = self._temporary <= limit
        return self._work(int(np.argmin(np.where(allowed, self._total, np.inf)))) if allowed.any() else None

    def smallest(self) -> Work:
        """Return the work of the candidate with the least temporary memory, and the fastest of them in a tie."""
        return self._work(int(np.lexsort((self._total, self._temporary))[0]))

    def _work(self, index: int) -> Work:
        for candidates in self._candidates:
            if index < len(candidates.temporary_bytes):
                break
            index -= len(candidates.temporary_bytes)
        work = _planned(self._step, self._device, candidates, index)
        return work if self._count == 1 else repeated(self._problem, work, self._axis, self._count, self._device)


def _planned(problem: Problem, device: Device, candidates: Candidates, index: int) -> Work:
    """Return the work of a candidate, including what the pass needs in addition to the contraction."""
    split = candidates.split
    compute, exchange, phases, outputs = (float(array[index]) for array in candidates.costs)
    cycles = Cycles(compute, exchange, int(phases))
    if problem.which is LayerPass.DATA_GRADIENT:
        # The weights, which are spread over all tiles, are transposed.
        share = problem.weight_elements / device.chip.tiles
        transpose = Cycles(compute=device.constants.weight_transpose_cycles_per_element * share)
        cycles = cycles + (transpose + device.exchange(share * problem.element_bytes))
        if problem.positions == 1 and problem.pixels > problem.samples:
            # One position in stride x stride has a gradient, the others are filled with zeros.
            outputs *= problem.pixels / problem.samples
            filled = device.spread(problem.output_elements, problem.element)
            cycles = cycles + Cycles(compute=vertices.fill(device, filled, problem.element))
    names = zip(("field", "in", "out", "groups"), split.parts)
    cut = [f"{name} / {int(counts[index])}" for name, counts in names if counts[index] > 1]
    return Work(
        family="contraction",
        cycles=cycles,
        temporary_bytes=float(candidates.temporary_bytes[index]),
        flops=problem.flops,
        outputs_on_busiest_tile=outputs,
        plan=f"{split.method}: {', '.join(cut) if cut else 'one tile'}",
    )


# ------------------------------------------------------------------------------------- serial slices
#
# An axis is "batch", "in" (channels) or "out".
_SIZES = {"batch": "batch", "in": "in_channels", "out": "out_channels"}

# The axes that the planner may slice, and the one that each pass reduces: its slices' results are added up.
_SERIAL_AXES = {
    LayerPass.FORWARD: ("out",),
    LayerPass.DATA_GRADIENT: ("in",),
    LayerPass.WEIGHT_GRADIENT: ("out", "in", "batch"),
}
_REDUCED_AXIS = {LayerPass.FORWARD: "in", LayerPass.DATA_GRADIENT: "out", LayerPass.WEIGHT_GRADIENT: "batch"}


def slice_of(problem: Problem, axis: str, count: int) -> Problem:
    """Return one of `count` equal slices of a problem along `axis`, which run one after another."""
    return replace(problem, **{_SIZES[axis]: -(-getattr(problem, _SIZES[axis]) // count)})


def repeated(problem: Problem, step: Work, axis: str, count: int, device: Device) -> Work:
    """Return `count` steps, each taking its slice and putting its results in place or adding them up."""
    element = problem.element
    around = vertices.dynamic_slice(device, 1, device.spread(problem.weight_elements // count, element), element)
    outputs = step.outputs_on_busiest_tile
    if axis == _REDUCED_AXIS[problem.which]:
        around += vertices.scaled_add(device, outputs, element)
    else:
        around += vertices.dynamic_slice(device, 1, outputs, element)
        outputs *= count
    return replace(
        step,
        cycles=(step.cycles + Cycles(compute=around)).times(count),
        flops=problem.flops,
        outputs_on_busiest_tile=outputs,
        plan=f"{step.plan}; {count} serial slices of {axis}",
        repeats=step.repeats * count,
    )


# --------------------------------------------------------------------------- what a candidate costs


class Parts(NamedTuple):
    """Into how many parts field, input channels (the reduction), output channels and conv groups are cut."""

    field: Array
    ins: Array
    outs: Array
    groups: Array


@dataclass(frozen=True)
class Split:
    """Candidate splits of one method: arrays of equal length, sizes in elements of the busiest tile.

    `vertex` is in tile cycles; a tile needs `inputs` and `weights` and computes `results`. `copies` are the elements
    that it rearranges beforehand for each operand, in blocks or one by one. The vector unit writes results in their
    final type, the matrix unit writes partials.
    """

    method: str
    unit: MatrixUnit
    vertex: Array
    inputs: Array
    weights: Array
    results: Array
    parts: Parts
    copies: tuple[Array, ...] = ()
    in_blocks: bool = True
    vector_unit: bool = False


class Costs(NamedTuple):
    """Cycles and exchange phases of each candidate, and the results that its busiest tile has in the end."""

    compute: Array
    exchange: Array
    phases: Array
    outputs: Array

    def total(self, device: Device) -> Array:
        return self.compute + self.exchange + self.phases * device.sync_cycles


class Candidates(NamedTuple):
    split: Split
    costs: Costs
    temporary_bytes: Array


def evaluate(split: Split, device: Device) -> Candidates:
    unit, rate = split.unit, device.chip.exchange_bytes_per_cycle
    # A tile receives what it does not hold itself. Two neighbours that share an exchange bus and need the same inputs
    # (because output channels are split evenly over them) receive them together.
    parts, shared = split.parts, device.chip.tiles_per_exchange_bus
    at_once = np.where(parts.outs % shared == 0, float(shared), 1.0)
    received = split.inputs * (1 - 1 / parts.outs) / at_once + split.weights * (1 - 1 / parts.field)
    compute, phases = split.vertex, np.ones_like(split.vertex)
    exchange = received * unit.element_bytes / rate
    temporary = (split.inputs + split.weights) * unit.element_bytes + split.results * unit.partial_bytes
    for copied in split.copies:
        moved = copied * unit.element_bytes
        compute = compute + vertices.layout_copy(device, moved, unit.element_bytes, in_blocks=split.in_blocks)
        pieces = 0.0 if split.in_blocks else copied * device.constants.exchange_piece_cycles
        exchange = exchange + np.maximum(moved / rate, pieces)
        phases = phases + 1
        temporary = np.maximum(temporary, 2 * moved)
    exchange = exchange + phases * device.constants.exchange_fixed_cycles
    reduced = reduction(split.results, parts.ins, unit, device, converted=not split.vector_unit)
    costs = Costs(compute + reduced.compute, exchange + reduced.exchange, phases + reduced.phases, reduced.outputs)
    return Candidates(split, costs, temporary)


def reduction(results: Array, depth: Array, unit: MatrixUnit, device: Device, *, converted: bool = True) -> Costs:
    """Return the cost of summing `results` partials per tile over `depth` tiles: fewer stages are always faster.

    The partials of a stage are limited to bound the number of messages. If no other tile has partials, fp32 results of
    fp16 operands are only converted.
    """
    stages: Array = np.searchsorted((1, MOST_IN_ONE_STAGE, MOST_IN_TWO_STAGES), depth).astype(np.float64)
    compute, exchange = np.zeros_like(results), stages * device.constants.exchange_fixed_cycles
    if converted and unit.partial_bytes > unit.element_bytes:
        compute = np.where(depth > 1, compute, vertices.cast_stage(results, unit.workers))
    left, held, rate = depth, results, device.chip.exchange_bytes_per_cycle
    for remaining in range(int(stages.max()), 0, -1):
        takes_part = stages >= remaining
        # Rounded before it is rounded up: the cube root of 8 is a little more than 2 in floating point.
        ways = np.where(takes_part, np.ceil(np.round(left ** (1 / remaining), 9)), 1.0)
        after = np.ceil(held / ways)
        compute = compute + np.where(takes_part, vertices.reduce_stage(after, ways, unit), 0.0)
        exchange = exchange + np.where(takes_part, held * unit.partial_bytes / rate, 0.0)
        left, held = np.ceil(left / ways), after
    return Costs(compute, exchange, stages, np.ceil(results / depth))


# -------------------------------------------------------------------- the candidates of each method


def splits_of(problem: Problem, unit: MatrixUnit, tiles: int) -> Iterator[Split]:
    methods = _Methods(problem, unit, tiles)
    if problem.which is LayerPass.WEIGHT_GRADIENT:
        # One matrix product over all samples, with either operand as the field.
        rows, columns = problem.in_channels * problem.positions, problem.out_channels
        yield methods.pointwise("product", rows, problem.samples, columns, (INPUTS, WEIGHTS))
        yield methods.pointwise("product, swapped", columns, problem.samples, rows, (INPUTS, WEIGHTS))
    else:
        yield from methods.image_pass()
    if problem.in_channels * problem.out_channels <= 16:
        yield methods.channels()


@dataclass(frozen=True)
class _Methods:
    problem: Problem
    unit: MatrixUnit
    tiles: int

    def image_pass(self) -> Iterator[Split]:
        """Yield the splits of a forward pass, or of a data gradient, which swaps input and output channels."""
        problem = self.problem
        ins, outs = problem.in_channels, problem.out_channels
        if problem.which is LayerPass.DATA_GRADIENT:
            ins, outs = outs, ins
        if problem.positions == 1:
            # Strided or not, only the sampled points take part.
            field, copied = problem.samples, problem.transposed
            # The transpose vertex moves square blocks of a vector's width. Channels of images lie in groups that are
            # filled up, and so are the samples of a weight gradient; lengths of other matrices are what they are.
            in_blocks = all(length % self.unit.vector_width == 0 for length in (field, ins, outs)) or not copied
            yield replace(self.pointwise("pointwise", field, ins, outs, copied), in_blocks=in_blocks)
            if problem.image == problem.result == (1, 1):
                turned = tuple(WEIGHTS if operand == INPUTS else INPUTS for operand in copied)
                yield replace(self.pointwise("pointwise, swapped", outs, ins, field, turned), in_blocks=in_blocks)
            if min(field, ins, outs) <= TINY_FIELD:
                yield self._dots(ins, outs)
            return
        yield self._rows("rows", problem, ins, outs)
        if problem.which is LayerPass.FORWARD or problem.stride == (1, 1):
            pixels = problem.samples if problem.which is LayerPass.FORWARD else problem.pixels
            yield self.pointwise("expanded", pixels, ins * problem.positions, outs, (INPUTS,))
            if problem.kernel[1] > 1 and problem.kernel[0] > 1:
                yield self._expanded_columns(ins, outs)
        # The SLIC vertex takes fp16, stride 1 or 2, groups of one, two or four channels (three are filled up).
        strides_fit = max(problem.stride) <= (2 if problem.which is LayerPass.FORWARD else 1)
        if self.unit.is_half and max(ins, outs) <= 4 and strides_fit and problem.dilation == (1, 1):
            yield self._windows()

    def channels(self) -> Split:
        """Split for the vector unit: groups, a vector of them at a time; the results of a group; the samples to sum."""
        problem = self.problem
        if problem.which is LayerPass.WEIGHT_GRADIENT:
            results = problem.in_channels * problem.out_channels * problem.positions
            length = most_parts = problem.samples
        else:
            results = problem.output_elements // problem.groups
            per_result = problem.in_channels if problem.which is LayerPass.FORWARD else problem.out_channels
            length, most_parts = problem.positions * per_result, 1
        vectors = math.ceil(problem.groups / self.unit.vector_width)
        g, i, o, rt = self._field_cuts(results, vectors, most_parts, 1)
        gt, lt = np.ceil(vectors / g) * self.unit.vector_width, np.ceil(length / i)
        held, inputs, weights = rt * gt, rt * gt, lt * gt
        if problem.which is LayerPass.WEIGHT_GRADIENT:
            inputs, weights = lt * problem.in_channels * gt, lt * problem.out_channels * gt
        vertex, parts = vertices.conv_vmac(held, lt, self.unit), Parts(np.ceil(results / rt), i, o, g)
        return Split("channels", self.unit, vertex, inputs, weights, held, parts, vector_unit=True)

    def pointwise(self, method: str, field: int, ins: int, outs: int, copied: tuple[str, ...]) -> Split:
        """Split field, input channels, output channels and groups; the field uses the remaining tiles."""
        unit, groups = self.unit, self.problem.groups
        in_groups, out_groups = math.ceil(ins / unit.channel_group), math.ceil(outs / unit.units)
        g, i, o, cut = self._field_cuts(field, groups, in_groups, out_groups)
        gt, gi, go = np.ceil(groups / g), np.ceil(in_groups / i), np.ceil(out_groups / o)
        inputs = cut * gi * unit.channel_group * gt
        weights = gi * unit.channel_group * go * unit.units * gt
        parts = Parts(np.ceil(field / cut), i, o, g)
        # Every tile copies its share of the operand as it is laid out for the plan.
        shares = {INPUTS: inputs / o, WEIGHTS: weights / parts.field}
        vertex, results = vertices.conv_1x1(cut, gi, go, gt, unit), cut * go * unit.units * gt
        return Split(method, unit, vertex, inputs, weights, results, parts, tuple(shares[name] for name in copied))

    def _field_cuts(
        self, field: int, groups: int, ins: int, outs: int, most_ins: int | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Return parts of groups, inputs and outputs with each useful cut of the field, which uses the remaining tiles.

        Finer cuts reduce every cost except that of the weights, so large fields are cut as finely as possible or not at
        all.
        """
        tiles = self.tiles
        g, i, o = grid(distinct(groups, tiles), distinct(ins, min(tiles, most_ins or tiles)), paired(outs, tiles))
        keep = g * i * o <= tiles
        g, i, o = g[keep], i[keep], o[keep]
        free = np.minimum(np.floor(self.tiles / (g * i * o)), field)
        if field <= SMALL_FIELD:
            parts = distinct(field, self.tiles)
            which, chosen = np.nonzero(parts <= free[:, None])
            return g[which], i[which], o[which], np.ceil(field / parts[chosen])
        cut = np.concatenate([np.ceil(field / free), np.full_like(free, float(field))])
        return np.tile(g, 2), np.tile(i, 2), np.tile(o, 2), cut

    def _rows(self, method: str, problem: Problem, ins: int, outs: int) -> Split:
        unit = self.unit
        in_groups, out_groups = math.ceil(ins / unit.channel_group), math.ceil(outs / unit.units)
        field, (i, o, g), (bt, ht, wt) = self._combinations(problem, in_groups, out_groups, problem.groups)
        gi, go, gt = np.ceil(in_groups / i), np.ceil(out_groups / o), np.ceil(problem.groups / g)
        read, rows, width = _reads(problem, bt, ht, wt)
        vertex = vertices.conv_nx1(rows, width, bt * ht * wt, gi, go, gt, problem.kernel, unit)
        inputs = read * gi * unit.channel_group * gt
        weights = problem.positions * gi * unit.channel_group * go * unit.units * gt
        results = bt * ht * wt * go * unit.units * gt
        return Split(method, unit, vertex, inputs, weights, results, Parts(field, i, o, g))

    def _expanded_columns(self, ins: int, outs: int) -> Split:
        problem = self.problem
        (ky, kx), (sy, _), (dy, _) = problem.kernel, problem.stride, problem.dilation
        image, result = problem.image, (problem.result[0], problem.image[1])
        if problem.which is LayerPass.FORWARD:
            image, result = (problem.image[0], problem.result[1]), problem.result
        narrow = replace(problem, kernel=(ky, 1), stride=(sy, 1), dilation=(dy, 1), image=image, result=result)
        plain = self._rows("expanded columns", narrow, ins * kx, outs)
        return replace(plain, copies=(plain.inputs / plain.parts.outs,))

    def _combinations(
        self, problem: Problem, ins: int, outs: int, groups: int
    ) -> tuple[Array, tuple[Array, Array, Array], tuple[Array, Array, Array]]:
        """Return every way to cut six dimensions so that the number of parts suits the tiles.

        The parts of the field; of input channels, output channels and groups; batch, rows and columns on the busiest.
        """
        tiles, (rows, columns) = self.tiles, problem.area
        b, h, w = grid(distinct(problem.batch, tiles), distinct(rows, tiles), distinct(columns, tiles))
        i, o, g = grid(distinct(ins, tiles), paired(outs, tiles), distinct(groups, tiles))
        field, channels = b * h * w, i * o * g
        used = np.multiply.outer(field, channels)
        allowed = used <= tiles
        first, second = np.nonzero(allowed & (used >= float(used[allowed].max()) * LEAST_SHARE_OF_TILES))
        on_tile = np.ceil(problem.batch / b[first]), np.ceil(rows / h[first]), np.ceil(columns / w[first])
        return field[first], (i[second], o[second], g[second]), on_tile

    def _windows(self) -> Split:
        problem = self.problem
        channels = next(size for size in (1, 2, 4) if size >= max(problem.in_channels, problem.out_channels))
        blocks = math.ceil(problem.groups * channels / 4)
        field, (i, o, g), (bt, ht, wt) = self._combinations(problem, 1, 1, blocks)
        held = np.ceil(blocks / g)
        read, rows, width = _reads(problem, bt, ht, wt)
        vertex = vertices.conv_slic(rows, np.ceil(width * max(problem.stride)), held, problem.kernel, self.unit)
        weights, results = held * 4 * channels * problem.positions, bt * ht * wt * held * 4
        return Split("windows", self.unit, vertex, read * held * 4, weights, results, Parts(field, i, o, g))

    def _dots(self, ins: int, outs: int) -> Split:
        """Split for the vector unit, one dot product for each result: groups, channels and field."""
        field, groups = self.problem.samples, self.problem.groups
        g, i, o, ft = self._field_cuts(field, groups, ins, outs, most_ins=TINY_FIELD)
        gt, length, ot = np.ceil(groups / g), np.ceil(ins / i), np.ceil(outs / o)
        vertex, held = vertices.conv_hmac(ft * ot * gt, length, self.unit), ft * ot * gt
        inputs, weights, parts = ft * length * gt, ot * length * gt, Parts(np.ceil(field / ft), i, o, g)
        return Split("dots", self.unit, vertex, inputs, weights, held, parts, vector_unit=True)


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


@lru_cache(maxsize=4096)
def paired(length: int, most: int) -> Array:
    """Return `distinct` numbers of parts and the even ones that follow them: pairs of tiles receive inputs together."""
    parts = distinct(length, most)
    return np.union1d(parts, np.minimum(parts + parts % 2, most)) if length > 1 else parts


def grid(*axes: Array) -> list[Array]:
    return [mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")]
