"""Half precision beyond +-65504: results clip, a division by zero gives NaN (*derived*: ipu-hardware.md, last section).

Expected values are PyTorch's in float64, clipped to +-65504.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from half_support import Calls, half, infer
from torch import Tensor, nn
from tracing_support import session_of

from ipu_model.compute.half_ops import BOUNDED
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.rounding import Overflow
from ipu_model.errors import Error

aten = torch.ops.aten
INF, NAN = math.inf, math.nan

# Every finite float16 number; 63,488 of them.
_bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
FINITE = _bits[_bits.isfinite()].float()
ENDS = torch.tensor([65504.0, -65504.0])

# Ops that are never clipped, on the operands that make their results largest.
IMAGE = torch.full((1, 1, 5, 5), 65504.0)
WORST: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys((op for op in BOUNDED if "backward" not in str(op)), (FINITE,)),
    aten._softmax.default: (FINITE, 0, False), aten._safe_softmax.default: (FINITE, 0),
    aten.mean.dim: (torch.full((3, 70000), -65504.0), [1]), aten.mean.default: (torch.full((70000,), 65504.0),),
    aten._adaptive_avg_pool2d.default: (IMAGE, [3, 3]), aten._adaptive_avg_pool3d.default: (IMAGE, [1, 3, 3]),
    aten.upsample_linear1d.default: (IMAGE[0], [13], False), aten.upsample_bilinear2d.default: (IMAGE, [7, 13], True),
    aten.upsample_trilinear3d.default: (IMAGE[None], [3, 7, 13], False),
    aten.sigmoid_backward.default: (ENDS[:, None].expand(2, 9), torch.linspace(0, 1, 9)),
    aten.tanh_backward.default: (ENDS[:, None].expand(2, 9), torch.linspace(-1, 1, 9)),
    aten._softmax_backward_data.default: (ENDS, torch.tensor([0.5, 0.5]), 0, torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(WORST, key=str), ids=str)
def test_ops_that_are_not_clipped_stay_in_the_range(op: Callable[..., Tensor]) -> None:
    result = op(*(a.clone() if isinstance(a, Tensor) else a for a in WORST[op]))
    poles = result.isinf()  # of rsqrt and the logarithms: those become NaN
    assert result[~poles & ~result.isnan()].abs().max() < 65520
    assert int(poles.sum()) <= 2


def test_every_op_that_is_not_clipped_is_tested() -> None:
    assert WORST.keys() == BOUNDED


@pytest.mark.parametrize("function", [
    lambda x: x * 1.001, lambda x: x * -1, lambda x: x * 0.5, lambda x: x / 0.999, lambda x: x / -1, lambda x: x / 3,
    lambda x: x + 15.9, lambda x: x + 16, lambda x: x - 15.9, lambda x: x - 33, lambda x: 1 - x, lambda x: 40 - x,
    lambda x: x.add(1, alpha=100), lambda x: x.clone().mul_(2), lambda x: x.clone().add_(20), lambda x: x.mul(x),
    lambda x: x.sub(x, alpha=-2), lambda x: x * torch.tensor(3.0), lambda x: x.float().mul(3).mean(0, dtype=x.dtype),
])  # fmt: skip
def test_arithmetic_with_numbers_clips_where_it_must(function: Callable[[Tensor], Tensor]) -> None:
    x = half(65504.0, -65504.0, 65472.0, 1.0, 0.1)
    (result,) = infer(function, x)
    torch.testing.assert_close(result.double(), function(x.double()).clamp(-65504, 65504), rtol=2**-11, atol=0)


def test_dropout_masks_are_within_the_range_and_others_that_are_divided_are_clipped() -> None:
    def masks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plain = torch.empty_like(x).bernoulli_(0.5)
        changed = torch.empty_like(x).bernoulli_(0.5)
        changed.mul_(60000)
        return plain.div_(0.5), changed.div_(0.5), torch.bernoulli(x, 0.5) / 2.0**-20

    for result, largest in zip(infer(masks, torch.zeros(1000).half()), (2.0, 65504.0, 65504.0)):
        assert set(result.tolist()) == {0.0, largest}


# Division by zero, in the sense of IEEE 754: an infinite result that is exact.


@pytest.mark.parametrize(("function", "value", "divisor"), [
    (lambda x, y: x / y, 8.0, 0.0), (lambda x, y: x / y, -8.0, -0.0), (lambda x, y: x / y, 0.0, 0.0),
    (lambda x, y: x.clone().div_(y), 8.0, 0.0), (lambda x, y: x / 0, 8.0, 0.0),
    (lambda x, y: torch.div(x, y, rounding_mode="floor"), 8.0, 0.0), (lambda x, y: x / y.sum(), 8.0, 0.0),
    (lambda x, y: y.reciprocal(), 1.0, 0.0), (lambda x, y: 1 / y, 1.0, 0.0), (lambda x, y: y.rsqrt(), 1.0, 0.0),
    (lambda x, y: y.log(), 1.0, 0.0), (lambda x, y: y.log2(), 1.0, 0.0), (lambda x, y: y.log10(), 1.0, 0.0),
    (lambda x, y: y.clone().log_(), 1.0, 0.0), (lambda x, y: y.log1p(), 1.0, -1.0),
    (lambda x, y: y.atanh(), 1.0, 1.0),
    (lambda x, y: y**-1, 1.0, 0.0), (lambda x, y: y**x, -0.5, 0.0), (lambda x, y: 0.0**x, -2.0, 0.0),
    (lambda x, y: torch.addcdiv(x, x, y), 8.0, 0.0),
])  # fmt: skip
def test_a_division_by_zero_gives_nan_and_an_infinity_in_float32_or_on_a_gpu(
    function: Callable[..., Tensor], value: float, divisor: float
) -> None:
    x, y = half(value), half(divisor)
    (result,) = infer(function, x, y)
    assert result.isnan().all()
    plain = function(x.float(), y.float())
    for same in (*infer(function, x.float(), y.float()), *infer(function, x, y, overflow=Overflow.INFINITY)):
        torch.testing.assert_close(same.float(), plain, equal_nan=True)


def test_only_the_elements_that_divide_by_zero_are_nan() -> None:
    (quotient,) = infer(lambda x, y: x / y, half(8.0, 8.0, 8.0), half(0.0, 2.0, 2.0**-24))
    assert quotient[0].isnan()
    assert quotient[1:].tolist() == [4.0, 65504.0]
    (power,) = infer(lambda x: x**-2, half(0.0, 2.0, 2.0**-24))
    assert power[0].isnan()
    assert power[1:].tolist() == [0.25, 65504.0]


def test_large_quotients_and_powers_that_float32_cannot_hold_are_clipped() -> None:
    """(2^-24)^-8 = 2^192 and exp(60000) are infinite in float32 too, but they are overflow."""
    (power,) = infer(lambda x: x**-8, half(2.0**-24))
    (exponential,) = infer(torch.exp, half(60000.0))
    assert (power.item(), exponential.item()) == (65504.0, 65504.0)


# Infinities that a program writes: masks.


@pytest.mark.parametrize("bottom", [-INF, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("mask", [
    lambda scores, keep, bottom: scores.masked_fill(~keep, bottom),
    lambda scores, keep, bottom: scores + torch.zeros_like(scores).masked_fill(~keep, bottom),
    lambda scores, keep, bottom: scores + (1.0 - keep.to(scores.dtype)) * max(bottom, -65504.0),
    lambda scores, keep, bottom: torch.where(keep, scores, torch.tensor(bottom)),
    lambda scores, keep, bottom: scores + torch.full((4, 4), bottom).masked_fill(keep, 0.0).to(scores.dtype),
])  # fmt: skip
def test_masked_scores_get_no_weight(mask: Callable[..., Tensor], bottom: float) -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).mul(3).half()
    keep = torch.ones(4, 4, dtype=torch.bool).tril()
    (weights,) = infer(lambda s, k: mask(s, k, bottom).softmax(-1), scores, keep)
    expected = scores.double().masked_fill(~keep, -INF).softmax(-1)
    assert (weights[~keep] == 0).all()
    torch.testing.assert_close(weights.double(), expected, rtol=2**-10, atol=2**-14)


def test_a_mask_that_is_an_input_or_a_buffer_keeps_its_infinities() -> None:
    mask = half(0.0, -INF)
    (same, largest) = infer(lambda m: (m, m.amin()), mask)
    assert same.tolist() == [0.0, -INF]
    assert largest.item() == -INF
    (weights,) = infer(lambda s, m: (s + m).softmax(0), half(1.0, 2.0), mask)
    assert weights.tolist() == [1.0, 0.0]


def test_a_row_that_is_masked_altogether() -> None:
    """Infinities of the program's own give NaN, as in PyTorch; clipped sums are all alike, and so are the weights."""
    row, mask = half(1.0, 2.0), half(-INF, -INF)
    (written,) = infer(lambda s: s.masked_fill(s > 0, -INF).softmax(0), row)
    (added,) = infer(lambda s, m: (s + m).softmax(0), row, mask)
    assert written.isnan().all()
    assert added.tolist() == [0.5, 0.5]


def test_attention_with_masks_of_every_kind_is_pytorchs() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 8).half() for _ in range(3))
    keep = torch.ones(5, 5, dtype=torch.bool).tril()
    added = torch.zeros(5, 5).masked_fill(~keep, -INF).half()
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    attention = F.scaled_dot_product_attention
    (causal,) = infer(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v)
    masked = [infer(lambda q, k, v, m: attention(q, k, v, attn_mask=m), q, k, v, mask)[0] for mask in (keep, added)]
    for result in (causal, *masked):
        torch.testing.assert_close(result.double(), expected, rtol=2**-8, atol=2**-9)


# Other types.


def test_integers_wrap_and_float32_follows_ieee() -> None:
    (wrapped,) = infer(lambda i: i + 1, torch.tensor([2**31 - 1], dtype=torch.int32))
    (single,) = infer(lambda x: (x * 1e30) * 1e30, torch.ones(1))
    assert wrapped.item() == -(2**31)
    assert single.item() == INF


# Floating-point exceptions look before anything is clipped.


@pytest.mark.parametrize("function", [
    lambda x: x * 2, lambda x: x @ x, lambda x: 1 / (x - x), lambda x: (x.float() * 2).half(), lambda x: x.exp(),
    lambda x: x * torch.tensor([100_000]),
])  # fmt: skip
def test_exceptions_stop_what_would_be_clipped(function: Callable[[Tensor], Tensor]) -> None:
    x = half(60000.0, 1.0)
    infer(function, x)
    with pytest.raises(Error, match="overflowed or divided by zero"):
        infer(function, x, floating_point_exceptions=True)


def test_exceptions_do_not_change_what_becomes_of_a_mask() -> None:
    scores, mask = half(1.0, 2.0), half(0.0, -INF)
    (plain,), (checked,) = (infer(lambda s, m: s + m, scores, mask, floating_point_exceptions=on) for on in (0, 1))
    assert plain.tolist() == checked.tolist() == [1.0, -65504.0]


# The report of the first clipping.


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "were clipped" in record.getMessage()]


class Doubles(nn.Module):
    """Doubles its input in a layer of its own, then squares it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Calls(lambda x: x * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x).square()


def test_the_first_op_that_clips_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    session = session_of(Doubles(), half(1.0, 1.0, 1.0), training=False, arithmetic=Arithmetic(reports_clipping=True))
    with caplog.at_level(logging.WARNING):
        session.run([half(1.0, 2.0, 3.0)])
        assert reports(caplog) == []
        for _ in range(2):
            session.run([half(40000.0, 1.0, -50000.0)])
    (message,) = reports(caplog)
    assert "2 of 3 values (aten.mul.Tensor in module 'first', forward pass, line " in message
    assert "test_half_range.py: self.first = Calls(lambda x: x * 2)" in message


def test_a_statistic_that_clips_is_reported_with_the_op_that_writes_it(caplog: pytest.LogCaptureFixture) -> None:
    # The running mean becomes -1 x 0 + 2 x 40000; the variance, which the same op writes, stays in the range.
    norm = nn.BatchNorm1d(1, momentum=2.0).half()
    x = half(40000.0, 40000.0).reshape(2, 1)
    session = session_of(norm, x, training=False, arithmetic=Arithmetic(reports_clipping=True))
    with caplog.at_level(logging.WARNING):
        session.run([x])
    (message,) = reports(caplog)
    assert "1 of 1 values (aten.native_batch_norm.default in module " in message


@pytest.mark.parametrize("function", [lambda x: x * 0.25, lambda x: x + half(0.0, -INF), lambda x: x / (x - x)])
def test_masks_divisions_by_zero_and_results_in_range_are_not_reported(
    function: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        infer(function, half(65504.0, 1.0), reports_clipping=True)
    assert reports(caplog) == []


def test_the_report_changes_no_result_and_nothing_is_logged_without_it(caplog: pytest.LogCaptureFixture) -> None:
    x = half(65504.0, 300.0, 0.0)
    with caplog.at_level(logging.WARNING):
        plain = infer(lambda x: (x * x, 1 / x), x)
        assert reports(caplog) == []
        reported = infer(lambda x: (x * x, 1 / x), x, reports_clipping=True)
    for a, b in zip(plain, reported):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
