"""The ends of float16's range, through traced ops: overflow, underflow, infinities and NaN.

Expected values are arithmetic on the format: largest number 65504, ties to even, from 65520 on infinity,
smallest
number 2^-24, half of it and less is zero (capture-and-replay-notes.md, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from half_oracle import rounded
from half_support import differentiate, half, infer
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

INF, NAN = math.inf, math.nan
FLOATS = st.lists(st.floats(width=16, allow_nan=True), min_size=4, max_size=4)


@pytest.fixture(params=[False, True], ids=["denormals kept", "denormals flushed by the host"])
def denormals(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(("a", "b", "product"), [
    ([65504.0, 15.875], [1.0, 1.0], 65504.0),  # 65519.875
    ([65504.0, 16.0], [1.0, 1.0], INF),  # 65520
    ([-65504.0, -16.0], [1.0, 1.0], -INF),
    ([256.0, 0.0], [256.0, 1.0], INF),  # 65536
    ([60000.0, -60000.0], [2.0, 1.0], 60000.0),  # no overflow in between: fp32 inside an op
    ([2.0**-24, 0.0], [1.0, 1.0], 2.0**-24),
    ([2.0**-12, 0.0], [2.0**-13, 1.0], 0.0),  # 2^-25, a tie between 0 and 2^-24
    ([2.0**-12, 2.0**-24], [2.0**-13, 1.0], 2.0**-23),  # 1.5 * 2^-24, a tie to even
    ([2.0**-12, 2.0**-24], [2.0**-13, 0.03125], 2.0**-24),  # just above 2^-25
    ([INF, 1.0], [1.0, 1.0], INF),
    ([INF, INF], [1.0, -1.0], NAN),
    ([INF, 1.0], [0.0, 1.0], NAN),
    ([NAN, 1.0], [0.0, 1.0], NAN),
])  # fmt: skip
def test_a_product_of_matrices_at_the_ends_of_the_range(
    a: list[float], b: list[float], product: float, denormals: None
) -> None:
    (result,) = infer(torch.mm, half(*a).view(1, 2), half(*b).view(2, 1))
    assert result.item() == product or (math.isnan(product) and result.isnan().all())


@pytest.mark.parametrize(("function", "value", "expected"), [
    (lambda x: x + x, 65504.0, INF), (lambda x: x - x, INF, NAN), (lambda x: x * 0, INF, NAN),
    (lambda x: x / 0, 1.0, INF),
    (lambda x: x / 0, -1.0, -INF), (lambda x: x / 0, 0.0, NAN),
    (torch.exp, 11.0, rounded(torch.tensor(math.e).double() ** 11).item()),
    (torch.exp, 12.0, INF), (torch.exp, -17.0, 2.0**-24), (torch.exp, -18.0, 0.0), (torch.log, 0.0, -INF),
    (torch.log, -1.0, NAN), (torch.sqrt, -1.0, NAN), (torch.rsqrt, 0.0, INF),
    (torch.reciprocal, 2.0**-24, INF),
    (torch.square, 2.0**-13, 0.0), (torch.square, 300.0, INF), (torch.relu, NAN, NAN),
    (torch.relu, -INF, 0.0),
    (torch.abs, -INF, INF), (torch.sigmoid, -INF, 0.0), (torch.tanh, INF, 1.0),
    (lambda x: x.clamp(-1, 1), NAN, NAN),
    (lambda x: x.clamp(-1, 1), INF, 1.0), (lambda x: x.half(), 65504.0, 65504.0), (F.gelu, INF, INF),
    (lambda x: (x.float() * 2).half(), 65504.0, INF), (lambda x: x.float() * 2, 65504.0, 131008.0),
])  # fmt: skip
def test_functions_at_the_ends_of_the_range(
    function: Callable[[Tensor], Tensor], value: float, expected: float
) -> None:
    (result,) = infer(function, half(value))
    assert result.item() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_sum_may_pass_the_range_inside_an_op_but_not_between_ops() -> None:
    x = half(60000.0, 60000.0, -60000.0)
    (inside,) = infer(lambda x: x.sum(), x)
    (between,) = infer(lambda x: x[0] + x[1] + x[2], x)
    assert inside.item() == 60000.0
    assert between.item() == INF


def test_softmax_of_scores_that_overflowed_is_nan_and_of_large_ones_is_not() -> None:
    (large,) = infer(lambda x: x.softmax(0), half(65504.0, 60000.0))
    assert large.tolist() == [1.0, 0.0]
    (overflowed,) = infer(lambda x: (x * 2).softmax(0), half(65504.0, 60000.0))
    assert overflowed.isnan().all()


def test_a_mean_of_many_values_does_not_overflow_but_their_sum_does() -> None:
    x = torch.full((1000,), 100.0, dtype=torch.float16)
    total, mean = infer(lambda x: (x.sum(), x.mean()), x)
    assert (total.item(), mean.item()) == (INF, 100.0)


def test_gradients_underflow_and_survive_when_the_loss_is_scaled() -> None:
    """The gradient of x is seed * 2^-20: below 2^-25 for a seed of 2^-6, a float16 number for one of 2^6."""
    weights = {"x": half(1.0)}
    for seed, expected in ((2.0**-6, 0.0), (2.0**6, 2.0**-14)):
        _, gradients = differentiate(lambda x: x * 2.0**-10 * 2.0**-10, half(seed), **weights)
        assert gradients["x"].item() == expected


def test_a_gradient_that_overflows_is_infinite_in_that_element_only() -> None:
    _, gradients = differentiate(lambda a, b: a * b, half(1024.0, 1024.0), a=half(1.0, 1.0), b=half(63.0, 64.0))
    assert gradients["a"].tolist() == [1024.0 * 63, INF]
    assert gradients["b"].tolist() == [1024.0, 1024.0]


@given(FLOATS, FLOATS)
def test_elementwise_arithmetic_is_ieee_half_arithmetic(a: list[float], b: list[float]) -> None:
    """Sums, differences, products and quotients of two float16 numbers are rounded as if computed exactly."""
    x, y = half(*a), half(*b)
    results = infer(lambda x, y: (x + y, x - y, x * y, x / y), x, y)
    u, v = x.double(), y.double()
    for result, exact in zip(results, (u + v, u - v, u * v, u / v)):
        torch.testing.assert_close(result.double(), rounded(exact), rtol=0, atol=0, equal_nan=True)
