"""The methods of computing a contraction on tiles, each with its candidate splits.

* pointwise: kernel 1 x 1; batch, rows and columns are one field that is cut freely
* rows: the kernel is walked position by position; batch, rows and columns are cut apart
* expanded: kernel positions become input channels (im2col), then pointwise; the input is copied
* expanded columns: kernel columns become input channels, then rows
* product: weight gradient as one matrix product that reduces over batch and positions; both operands are
  copied
* windows (SLIC), channels (VMAC), dots (HMAC): for few channels in a group, and for very small fields
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ipu_model.cost import matrix_vertices as vertices
from ipu_model.cost.candidates import Numbers, Split
from ipu_model.cost.matrix_vertices import Array
from ipu_model.cost.problem import Pass, Problem
from ipu_model.cost.splits import distinct, grid, within

# Candidates that leave most tiles idle are not looked at, where others use them.
LEAST_SHARE_OF_TILES = 0.25

# Fields for which the vector unit competes with the matrix unit, and fields for which every cut is tried.
TINY_FIELD, SMALL_FIELD = 8, 128


def splits_of(problem: Problem, numbers: Numbers, tiles: int) -> Iterator[Split]:
    """Yield the candidate splits of every method that can compute `problem` on so many tiles."""
    if problem.which is Pass.WEIGHT_GRADIENT:
        yield from _weight_gradient(problem, numbers, tiles)
    else:
        yield from _image_pass(problem, numbers, tiles)
    if problem.groups > 1 and problem.in_channels * problem.out_channels <= 16:
        yield _channels(problem, numbers, tiles)


def _image_pass(problem: Problem, numbers: Numbers, tiles: int) -> Iterator[Split]:
    """Forward, or data gradient: the same with input and output channels swapped."""
    ins, outs = problem.in_channels, problem.out_channels
    if problem.which is Pass.DATA_GRADIENT:
        ins, outs = outs, ins
    if problem.positions == 1:
        # Strided or not, only the sampled points take part.
        field = problem.samples
        yield _pointwise("pointwise", field, ins, outs, problem.groups, numbers, tiles)
        if problem.image == problem.result == (1, 1):
            yield _pointwise("pointwise, swapped", outs, ins, field, problem.groups, numbers, tiles)
    else:
        yield _rows("rows", problem, ins, outs, problem.kernel, numbers, tiles)
        strided = problem.which is Pass.DATA_GRADIENT and problem.stride != (1, 1)
        if not strided:
            pixels = problem.samples if problem.which is Pass.FORWARD else problem.pixels
            length = ins * problem.positions
            yield _pointwise("expanded", pixels, length, outs, problem.groups, numbers, tiles, copied=("inputs",))
            if problem.kernel[1] > 1 and problem.kernel[0] > 1:
                yield _expanded_columns(problem, ins, outs, numbers, tiles)
        if _fits_windows(problem, numbers):
            yield _windows(problem, numbers, tiles)
    if problem.positions == 1 and min(problem.samples, ins, outs) <= TINY_FIELD:
        yield _dots(problem.samples, ins, outs, problem.groups, numbers, tiles)


def _weight_gradient(problem: Problem, numbers: Numbers, tiles: int) -> Iterator[Split]:
    """One matrix product over all samples, with either operand as the field."""
    rows, columns = problem.in_channels * problem.positions, problem.out_channels
    both = ("inputs", "weights")
    for method, field, outs in (("product", rows, columns), ("product, swapped", columns, rows)):
        yield _pointwise(method, field, problem.samples, outs, problem.groups, numbers, tiles, copied=both)


def _pointwise(
    method: str, field: int, ins: int, outs: int, groups: int, numbers: Numbers, tiles: int,
    copied: tuple[str, ...] = (),
) -> Split:  # fmt: skip
    """Split field, input channels, output channels and groups; the field gets the tiles that are left."""
    in_groups = math.ceil(ins / numbers.channel_group)
    out_groups = math.ceil(outs / numbers.units)
    g, i, o = grid(distinct(groups, tiles), distinct(in_groups, tiles), distinct(out_groups, tiles))
    keep = g * i * o <= tiles
    g, i, o, cut = _field_cuts(field, g[keep], i[keep], o[keep], tiles)
    gt, gi, go = np.ceil(groups / g), np.ceil(in_groups / i), np.ceil(out_groups / o)
    inputs = cut * gi * numbers.channel_group * gt
    weights = gi * numbers.channel_group * go * numbers.units * gt
    parts = np.ceil(field / cut)
    # Every tile copies its share of the operand as it is laid out for the plan.
    shares = {"inputs": inputs / o, "weights": weights / parts}
    return Split(
        method=method, numbers=numbers,
        vertex=vertices.pointwise(cut, gi, go, gt, numbers.units, numbers.element_bytes),
        inputs=inputs, weights=weights, results=cut * go * numbers.units * gt,
        field=parts, ins=i, outs=o, groups=g, copies=tuple(shares[name] for name in copied),
    )  # fmt: skip


def _field_cuts(field: int, g: Array, i: Array, o: Array, tiles: int) -> tuple[Array, Array, Array, Array]:
    """Return each combination with each useful size of a part of the field: it gets the tiles that are left.

    Finer cuts cost less of everything but weights, so large fields are cut as finely as possible or not at
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
    method: str, problem: Problem, ins: int, outs: int, kernel: tuple[int, int], numbers: Numbers, tiles: int
) -> Split:
    """Split batch, rows, columns, input and output channels and groups of a k x k contraction."""
    in_groups = math.ceil(ins / numbers.channel_group)
    out_groups = math.ceil(outs / numbers.units)
    area = problem.result if problem.which is Pass.FORWARD else problem.image
    b, h, w, i, o, g = _combinations(tiles, problem.batch, area[0], area[1], in_groups, out_groups, problem.groups)
    bt, ht, wt = np.ceil(problem.batch / b), np.ceil(area[0] / h), np.ceil(area[1] / w)
    gi, go, gt = np.ceil(in_groups / i), np.ceil(out_groups / o), np.ceil(problem.groups / g)
    read, rows, width = _reads(problem, bt, ht, wt)
    inputs = read * gi * numbers.channel_group * gt
    positions = kernel[0] * kernel[1]
    results = bt * ht * wt * go * numbers.units * gt
    return Split(
        method=method, numbers=numbers,
        vertex=vertices.rowwise(
            rows, width, bt * ht * wt, gi, go, gt, kernel, numbers.units, numbers.element_bytes
        ),
        inputs=inputs, results=results,
        weights=positions * gi * numbers.channel_group * go * numbers.units * gt,
        field=b * h * w, ins=i, outs=o, groups=g,
    )  # fmt: skip


def _reads(problem: Problem, bt: Array, ht: Array, wt: Array) -> tuple[Array, Array, Array]:
    """Return the pixels a tile reads, and rows and columns that one kernel position works on.

    A strided data gradient reaches only every stride-th row and column from one kernel position.
    """
    (ky, kx), (sy, sx), (dy, dx) = problem.kernel, problem.stride, problem.dilation
    if problem.which is Pass.FORWARD:
        high = np.minimum((ht - 1) * sy + (ky - 1) * dy + 1, problem.image[0])
        wide = np.minimum((wt - 1) * sx + (kx - 1) * dx + 1, problem.image[1])
        return bt * high * wide, bt * ht, wt
    high = np.minimum(np.ceil((ht + (ky - 1) * dy) / sy), problem.result[0])
    wide = np.minimum(np.ceil((wt + (kx - 1) * dx) / sx), problem.result[1])
    return bt * high * wide, bt * np.ceil(ht / sy), np.ceil(wt / sx)


def _expanded_columns(problem: Problem, ins: int, outs: int, numbers: Numbers, tiles: int) -> Split:
    """Columns of the kernel become input channels of a kernel one column wide."""
    columns = problem.kernel[1]
    plain = _rows("expanded columns", _one_column(problem), ins * columns, outs, (problem.kernel[0], 1), numbers, tiles)
    return replace(plain, copies=(plain.inputs / plain.outs,))


def _one_column(problem: Problem) -> Problem:
    (ky, _), (sy, _), (dy, _) = problem.kernel, problem.stride, problem.dilation
    image = (problem.image[0], problem.result[1]) if problem.which is Pass.FORWARD else problem.image
    result = problem.result if problem.which is Pass.FORWARD else (problem.result[0], problem.image[1])
    return replace(problem, kernel=(ky, 1), stride=(sy, 1), dilation=(dy, 1), image=image, result=result)


def _combinations(
    tiles: int, batch: int, rows: int, columns: int, ins: int, outs: int, groups: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return every way to cut six dimensions into parts whose product suits the tiles."""
    b, h, w = grid(distinct(batch, tiles), distinct(rows, tiles), distinct(columns, tiles))
    i, o, g = grid(distinct(ins, tiles), distinct(outs, tiles), distinct(groups, tiles))
    area, channels = b * h * w, i * o * g
    first, second = np.nonzero(within(np.multiply.outer(area, channels), tiles, LEAST_SHARE_OF_TILES))
    return b[first], h[first], w[first], i[second], o[second], g[second]


def _fits_windows(problem: Problem, numbers: Numbers) -> bool:
    """Whether the SLIC vertex can do it: fp16, groups of one, two or four channels, stride 1 or 2."""
    channels = (problem.in_channels, problem.out_channels)
    strides_fit = max(problem.stride) <= (2 if problem.which is Pass.FORWARD else 1)
    grouped = problem.groups > 1 and channels in ((1, 1), (2, 2), (4, 4))
    return numbers.element_bytes == 2 and grouped and strides_fit and problem.dilation == (1, 1)


def _windows(problem: Problem, numbers: Numbers, tiles: int) -> Split:
    """Split batch, rows, columns and blocks of four channels of a grouped convolution."""
    area = problem.result if problem.which is Pass.FORWARD else problem.image
    blocks = math.ceil(problem.groups * problem.in_channels / 4)
    b, h, w, i, o, g = _combinations(tiles, problem.batch, area[0], area[1], 1, 1, blocks)
    bt, ht, wt = np.ceil(problem.batch / b), np.ceil(area[0] / h), np.ceil(area[1] / w)
    held = np.ceil(blocks / g)
    read, rows, width = _reads(problem, bt, ht, wt)
    stepped = np.ceil(width * max(problem.stride))
    vertex = vertices.windowed(rows, stepped, held, problem.kernel, 1 if numbers.partial_bytes == 2 else 2)
    weights = held * 4 * problem.in_channels * problem.positions
    return Split(
        method="windows", numbers=numbers, vertex=vertex, inputs=read * held * 4, weights=weights,
        results=bt * ht * wt * held * 4, field=b * h * w, ins=i, outs=o, groups=g,
    )  # fmt: skip


def _channels(problem: Problem, numbers: Numbers, tiles: int) -> Split:
    """Vector unit, channel by channel: split groups, the results of a group, and samples to add up."""
    inner = problem.in_channels * problem.out_channels
    if problem.which is Pass.WEIGHT_GRADIENT:
        results, length, most_parts = inner * problem.positions, problem.samples, problem.samples
    else:
        results = problem.output_elements // problem.groups
        per_result = problem.in_channels if problem.which is Pass.FORWARD else problem.out_channels
        length, most_parts = problem.positions * per_result, 1
    g, i = grid(distinct(problem.groups, tiles), distinct(most_parts, tiles))
    keep = g * i <= tiles
    g, i, o, rt = _field_cuts(results, g[keep], i[keep], np.ones(int(keep.sum())), tiles)
    gt, lt = np.ceil(problem.groups / g), np.ceil(length / i)
    held, parts = rt * gt, np.ceil(results / rt)
    if problem.which is Pass.WEIGHT_GRADIENT:
        inputs, weights = lt * problem.in_channels * gt, lt * problem.out_channels * gt
    else:
        inputs, weights = rt * gt, np.full_like(gt, float(length)) * gt
    return Split(
        method="channels", numbers=numbers,
        vertex=vertices.channelwise(held, lt, numbers.element_bytes),
        inputs=inputs, weights=weights, results=held, field=parts, ins=i, outs=o, groups=g, vector_unit=True,
    )  # fmt: skip


def _dots(field: int, ins: int, outs: int, groups: int, numbers: Numbers, tiles: int) -> Split:
    """Vector unit, one dot product for each result: split groups, channels and field."""
    parts = distinct(ins, min(tiles, TINY_FIELD))
    g, i, o = grid(distinct(groups, tiles), parts, distinct(outs, tiles))
    keep = g * i * o <= tiles
    g, i, o, ft = _field_cuts(field, g[keep], i[keep], o[keep], tiles)
    gt, length, ot = np.ceil(groups / g), np.ceil(ins / i), np.ceil(outs / o)
    held = ft * ot * gt
    return Split(
        method="dots", numbers=numbers, vertex=vertices.dot_products(held, length, numbers.element_bytes),
        inputs=ft * length * gt, weights=ot * length * gt, results=held,
        field=np.ceil(field / ft), ins=i, outs=o, groups=g, vector_unit=True,
    )  # fmt: skip
