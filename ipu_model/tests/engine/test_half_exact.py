"""The ops that need no rounding: on every float16 value there is, they give float16 values, the native ones.

Inputs run over all 65,536 bit patterns (subnormals, both zeros, infinities, NaN),
held in float32 as in a replay.
Native results come from the same op on real float16 tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from half_oracle import on_grid, ulps
from torch import Tensor

from ipu_model.compute.exact import COMPARING, CONVERTING, EXACT, SELECTING, UNINITIALISED
from ipu_model.compute.rounding import round_to_half_

aten = torch.ops.aten

ALL = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
_mixed = torch.randperm(2**16, generator=torch.Generator().manual_seed(0))
SQUARE = ALL[_mixed].view(256, 256)
OTHER = ALL[_mixed.flip(0)].view(256, 256)
IMAGES = ALL[_mixed].view(4, 4, 64, 64)
VOLUME = ALL[_mixed].view(2, 2, 16, 32, 32)
ROWS = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(1))
INDEX = torch.randint(0, 256, (256, 256), generator=torch.Generator().manual_seed(2))
MASK = INDEX % 2 == 0
NUMBER = 0.333251953125  # on the grid; what happens to others is the subject of test_half_operands.py

x, y, i, v = SQUARE, OTHER, IMAGES, VOLUME
UNARY = (
    aten.relu.default, aten.relu_.default, aten.neg.default, aten.neg_.default, aten.abs.default,
    aten.abs_.default,
    aten.sign.default, aten.sgn.default, aten.round.default, aten.floor.default, aten.ceil.default,
    aten.trunc.default, aten.clone.default, aten.max.default, aten.min.default, aten.tril.default,
    aten.triu.default,
    aten.zeros_like.default, aten.ones_like.default, aten.zero_.default, aten.sort.default, aten.amax.default,
    aten.amin.default,
)  # fmt: skip
CALLS: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys(UNARY, (x,)),
    aten.maximum.default: (x, y), aten.minimum.default: (x, y),
    aten.max.dim: (x, 1), aten.min.dim: (x, 0), aten.median.dim: (x, 1), aten.kthvalue.default: (x, 7, 1),
    aten.cummax.default: (x, 1), aten.cummin.default: (x, 1), aten.sort.stable: (x,),
    aten.topk.default: (x, 9, 1),
    aten.max_pool2d_with_indices.default: (i, [3, 3], [2, 2], [1, 1]),
    aten.max_pool3d_with_indices.default: (v, [2, 2, 2], [2, 2, 2]),
    aten.adaptive_max_pool2d.default: (i, [5, 5]), aten.adaptive_max_pool3d.default: (v, [5, 5, 5]),
    aten.index.Tensor: (x, [ROWS]), aten._unsafe_index.Tensor: (x, [ROWS]),
    aten.index_select.default: (x, 0, ROWS),
    aten.gather.default: (x, 0, INDEX), aten.embedding.default: (x, ROWS),
    aten.index_copy.default: (x, 0, torch.arange(9), y[:9]), aten.scatter.src: (x, 0, INDEX, y),
    aten.scatter_.src: (x, 0, INDEX, y), aten.cat.default: ([x, y],), aten.stack.default: ([x, y],),
    aten._unsafe_view.default: (x, [65536]), aten._reshape_copy.default: (x, [65536]),
    aten.flip.default: (x, [0]),
    aten.roll.default: (x, [3], [1]), aten.repeat.default: (x, [1, 2]), aten.im2col.default: (i, 3, 1, 0, 1),
    aten.pixel_shuffle.default: (i, 2), aten.pixel_unshuffle.default: (i, 2),
    aten.select_backward.default: (x, [256, 3, 256], 1, 1),
    aten.slice_backward.default: (x, [256, 300], 1, 5, 261, 1),
    aten.diagonal_backward.default: (x.view(4096, 16), [4096, 16, 16], 0, 1, 2),
    aten.slice_scatter.default: (x, y[:5], 0, 3, 8),
    aten.select_scatter.default: (x, y[0], 0, 3), aten.diagonal_scatter.default: (x, y[0]),
    aten.unsafe_split.Tensor: (x, 100), aten.unsafe_split_with_sizes.default: (x, [6, 250]),
    aten.reflection_pad1d.default: (x, [3, 2]), aten.reflection_pad2d.default: (i, [3, 2, 1, 0]),
    aten.reflection_pad3d.default: (v, [3, 2, 1, 0, 1, 1]), aten.replication_pad1d.default: (x, [3, 2]),
    aten.replication_pad2d.default: (i, [3, 2, 1, 0]),
    aten.replication_pad3d.default: (v, [3, 2, 1, 0, 1, 1]),
    aten.upsample_nearest1d.default: (i[0], [100]), aten.upsample_nearest2d.default: (i, [99, 130]),
    aten.upsample_nearest3d.default: (v, [17, 33, 40]), aten.zeros.default: ([4],), aten.ones.default: ([4],),
    aten.new_zeros.default: (x, [4]), aten.new_ones.default: (x, [4]), aten.bernoulli.p: (x, 0.3),
    aten.bernoulli.default: (x.isfinite().to(x.dtype),), aten.bernoulli_.float: (x, 0.3),
    aten.bernoulli_.Tensor: (x, x.isfinite().to(x.dtype)),
    aten.clamp.default: (x, -NUMBER, NUMBER), aten.clamp_.default: (x, -NUMBER, NUMBER),
    aten.clamp_min.default: (x, NUMBER), aten.clamp_min_.default: (x, NUMBER),
    aten.clamp_max.default: (x, NUMBER),
    aten.clamp_max_.default: (x, NUMBER), aten.hardtanh.default: (x, -NUMBER, NUMBER),
    aten.hardtanh_.default: (x, -NUMBER, NUMBER), aten.hardtanh_backward.default: (x, y, -NUMBER, NUMBER),
    aten.threshold.default: (x, 0.5, NUMBER), aten.threshold_.default: (x, 0.5, NUMBER),
    aten.threshold_backward.default: (x, y, 0.5), aten.hardshrink.default: (x, NUMBER),
    aten.where.self: (MASK, x, y), aten.where.ScalarOther: (MASK, x, NUMBER),
    aten.where.ScalarSelf: (MASK, NUMBER, x),
    aten.masked_fill.Scalar: (x, MASK, NUMBER), aten.masked_fill_.Scalar: (x, MASK, NUMBER),
    aten.masked_fill.Tensor: (x, MASK, y[0, 0]), aten.masked_fill_.Tensor: (x, MASK, y[0, 0]),
    aten.fill.Scalar: (x, NUMBER), aten.fill_.Scalar: (x, NUMBER), aten.full.default: ([4], NUMBER),
    aten.full_like.default: (x, NUMBER), aten.new_full.default: (x, [4], NUMBER),
    aten.scalar_tensor.default: (NUMBER,), aten.constant_pad_nd.default: (x, [1, 2], NUMBER),
    aten.scatter.value: (x, 0, INDEX, NUMBER), aten.scatter_.value: (x, 0, INDEX, NUMBER),
    aten.index_fill.int_Scalar: (x, 0, ROWS, NUMBER), aten.index_fill_.int_Scalar: (x, 0, ROWS, NUMBER),
}  # fmt: skip
RANDOM = {aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli_.float, aten.bernoulli_.Tensor}


def call(op: Callable[..., Any], convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Call `op` on copies of its operands; return its floating results."""

    def prepared(value: Any) -> Any:
        if isinstance(value, list):
            return [prepared(item) for item in value]
        return convert(value).clone() if isinstance(value, Tensor) and value.is_floating_point() else value

    settings = {"stable": True} if op is aten.sort.stable else {}
    result = op(*(prepared(value) for value in CALLS[op]), **settings)
    return [t for t in (result if isinstance(result, (tuple, list)) else [result]) if t.is_floating_point()]


def test_every_listed_op_is_tested() -> None:
    assert set(CALLS) == (EXACT | SELECTING) - UNINITIALISED


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_results_on_all_float16_values_are_float16_values(op: Callable[..., Any]) -> None:
    results = call(op, Tensor.float)
    assert results
    factories = op in (aten.zeros.default, aten.ones.default, aten.full.default, aten.scalar_tensor.default)
    assert all(on_grid(result) for result in results)
    if op not in RANDOM and not factories:
        for mine, native in zip(results, call(op, Tensor.half), strict=True):
            assert int(ulps(mine, native.float()).max()) == 0
            zero = mine == 0
            assert torch.equal(mine.signbit() & zero, native.signbit() & zero)


@pytest.mark.parametrize("op", sorted(COMPARING, key=str), ids=str)
def test_comparisons_with_a_number_of_the_grid_are_the_native_ones(op: Callable[..., Any]) -> None:
    assert torch.equal(op(x.float(), NUMBER), op(x, NUMBER))


@pytest.mark.parametrize("source", [torch.uint8, torch.int8, torch.bool, torch.float16])
def test_conversions_from_narrow_types_need_no_rounding(source: torch.dtype) -> None:
    values = torch.arange(-128, 256).to(source) if source is not torch.float16 else ALL
    assert on_grid(aten._to_copy.default(values, dtype=torch.float32))
    assert on_grid(aten.copy_.default(torch.zeros(values.shape), values))
    assert aten._to_copy.default in CONVERTING
    assert aten.copy_.default in CONVERTING


def test_rounding_leaves_every_float16_value_as_it_is() -> None:
    values = ALL.float()
    kept = round_to_half_(values.clone())
    assert torch.equal(kept[~kept.isnan()], values[~values.isnan()])
    assert torch.equal(kept.isnan(), values.isnan())
    assert torch.equal(kept.signbit(), values.signbit())
