"""What becomes of numbers, integers and 32-bit scalars that meet float16 values, and what is refused.

Expected results are those of the same expression on real float16 tensors, unless the test says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from half_oracle import on_grid
from half_support import Calls, differentiate, half, infer
from torch import Tensor
from tracing_support import traced

from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import round_to_half_
from ipu_model.errors import Error

X = half(0.1, 0.3, -0.3, 2.0, -65504.0, 0.0, 1000.0)


@pytest.mark.parametrize("function", [
    lambda x: x == 0.1, lambda x: x != 0.1, lambda x: x >= 0.1, lambda x: x <= 0.3, lambda x: x > 0.3,
    lambda x: x < 0.1, lambda x: x.clamp(0.1, 0.3), lambda x: x.clamp(min=0.1),
    lambda x: x.masked_fill(x > 1, 0.1),
    lambda x: torch.where(x > 1, x, 0.3), lambda x: torch.where(x > 1, 0.3, x),
    lambda x: F.pad(x, (1, 1), value=0.1),
    lambda x: F.hardtanh(x, -0.3, 0.3), lambda x: F.threshold(x, 0.1, 0.3), lambda x: torch.full_like(x, 0.1),
    lambda x: x.clone().fill_(0.1), lambda x: x.new_full((3,), 0.1), lambda x: F.hardshrink(x, 0.1),
    lambda x: torch.full((2,), 1 / 3, dtype=torch.float16), lambda x: x.scatter(0, torch.tensor([1]), 0.1),
    lambda x: torch.arange(0, 1, 0.1, dtype=torch.float16), lambda x: torch.tensor([0.1, 1 / 3]).half(),
])  # fmt: skip
def test_a_number_that_is_compared_or_chosen_becomes_a_float16_value_first(
    function: Callable[[Tensor], Tensor],
) -> None:
    (result,) = infer(function, X)
    assert torch.equal(result, function(X))


@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min, 70000, float("-inf")])
def test_a_number_beyond_the_range_becomes_an_infinity(number: float) -> None:
    """PyTorch refuses such numbers on float16 tensors; masks of transformers use them."""
    (result,) = infer(lambda x: x.masked_fill(x > 1, number), X)
    assert result[3] == math.copysign(math.inf, number)
    (weights,) = infer(lambda x: x.masked_fill(x > 1, -abs(number)).softmax(0), half(2.0, 0.5, 0.5))
    assert weights.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("function", [
    lambda x, i: x * i, lambda x, i: x + i, lambda x, i: i - x, lambda x, i: x / i, lambda x,
    i: torch.maximum(x, i),
    lambda x, i: torch.where(x > 0, x, i), lambda x, i: x < i, lambda x, i: torch.cat([x, i]),
    lambda x, i: torch.stack([x, i]), lambda x, i: i.to(x.dtype), lambda x, i: i.type_as(x), lambda x,
    i: x.clone().copy_(i),
])  # fmt: skip
@pytest.mark.parametrize("integer", [torch.int32, torch.int16])
def test_integers_become_float16_values_before_they_meet_some(
    function: Callable[..., Tensor], integer: torch.dtype
) -> None:
    """2049 is between two float16 values, and 70000 (not in 16 bits) is infinite among them."""
    numbers = torch.tensor([1, 2049, 4099, 2051, -8195, 10001, 32767 if integer is torch.int16 else 70000]).to(integer)
    (result,) = infer(function, X, numbers)
    assert torch.equal(result.nan_to_num(7.0), function(X, numbers).nan_to_num(7.0))


def test_a_32_bit_scalar_tensor_takes_the_type_of_the_float16_tensor_it_meets() -> None:
    third = torch.tensor(1 / 3)
    (product,) = infer(lambda x, s: x * s, X, third)
    assert product.dtype is torch.float16
    assert torch.equal(product, (X.float() * third.half().float()).half())


def test_a_32_bit_tensor_raises_the_result_to_32_bits() -> None:
    (result,) = infer(lambda x, y: x + y, X, torch.full((7,), 1 / 3))
    assert result.dtype is torch.float32
    assert torch.equal(result, X + torch.full((7,), 1 / 3))


def test_adding_32_bit_numbers_in_place_rounds_the_sum_once() -> None:
    """PyTorch computes in float32 and stores float16: 1 + 2^-11 + 2^-20 is above the tie, 2^-20 counts."""
    (result,) = infer(lambda x, y: x.clone().add_(y), half(1.0), torch.tensor([2.0**-11 + 2.0**-20]))
    assert result.item() == 1 + 2.0**-10


def test_numbers_of_arithmetic_keep_their_32_bits() -> None:
    """0.1 is not rounded before the product is, as in PyTorch: 16.25 * half(0.1) would give 1.6240."""
    (result,) = infer(lambda x: x * 0.1, half(16.25))
    assert result.item() == 1.625


@pytest.mark.parametrize("draw", [
    lambda x: torch.rand(20000, dtype=torch.float16), lambda x: torch.rand_like(x),
    lambda x: torch.empty_like(x).uniform_(), lambda x: x.clone().uniform_(2, 4) / 4,
])  # fmt: skip
def test_uniform_numbers_stay_below_one(draw: Callable[[Tensor], Tensor]) -> None:
    """A float32 draw would round up to 1.0 once in 4,096 times, and -log(1 - u) to infinity."""
    (result,) = infer(draw, torch.zeros(20000, dtype=torch.float16))
    assert result.dtype is torch.float16
    assert 0 <= result.min() < result.max() < 1


@pytest.mark.parametrize("function", [
    lambda x: x.view(torch.int16), lambda x: x.view(torch.int16).view(torch.float16),
    lambda x: torch.nextafter(x, x + 1),
])  # fmt: skip
def test_looking_at_the_bits_of_float16_values_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Error, match=r"bits of float16 values.*\.to\(dtype\)"):
        infer(function, X)


def test_statistics_that_a_program_reads_itself_are_rounded() -> None:
    """Mean and deviation of layer norm stay in float32 for its backward op, but not for the program."""
    module = Calls(lambda x: torch.native_layer_norm(x, [7], None, None, 1e-5))
    graph = traced(module, X, training=False)
    _, mean, deviation = build(graph, Arithmetic()).module(X.float())[0]
    assert on_grid(mean)
    assert on_grid(deviation)


def test_statistics_kept_for_the_backward_pass_are_not_rounded() -> None:
    """With mean 0.3 and deviation 0.0004 a rounded mean would ruin the gradient that float64 gives."""
    x = half(*(0.2998 + 0.00024 * i for i in range(6)))
    weights = {"x": x.view(1, 6)}
    seed = half(1.0, 0.0, 0.0, 0.0, 0.0, 0.0).view(1, 6)
    _, gradients = differentiate(lambda x: F.layer_norm(x, (6,)), seed, **weights)
    exact = x.double().view(1, 6).requires_grad_()
    F.layer_norm(exact, (6,)).backward(seed.double())
    assert torch.allclose(gradients["x"].double(), exact.grad, rtol=2e-3, atol=0.1)


def test_the_divisor_of_a_mean_loss_may_exceed_the_float16_range() -> None:
    """70,000 tokens: the count is no float16 number, the mean loss and its gradient are."""
    logits = half(1.0, 0.0).expand(70000, 2)
    weights = {"logits": logits.contiguous()}

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, torch.zeros(70000, dtype=torch.long))

    output, gradients = differentiate(loss, torch.tensor(4096.0), **weights)
    assert output.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=2.0**-11)
    expected = -4096 / 70000 * (1 - 1 / (1 + math.exp(-1)))
    assert gradients["logits"][0, 0].item() == pytest.approx(expected, rel=2.0**-9)


def test_a_list_of_tensors_changed_in_place_is_rounded() -> None:
    def change(x: Tensor) -> tuple[Tensor, ...]:
        parts = [x.clone(), x * 2]
        torch._foreach_add_(parts, 1 / 3)
        return tuple(parts)

    for result in infer(change, X):
        assert on_grid(result)
    graph = traced(Calls(change), X, training=False)
    rewritten = build(graph, Arithmetic()).module(X.float())[0]
    assert all(on_grid(t) for t in rewritten)


def test_consecutive_roundings_of_one_result_do_not_occur() -> None:
    graph = traced(Calls(lambda x: (x * 0.1).relu().add_(0.1).view(7, 1)), X, training=False)
    values = [n.args[0] for n in build(graph, Arithmetic()).module.graph.nodes if n.target is round_to_half_]
    assert len(values) == len(set(values)) == 2, "the product and the sum"


def test_dropout_rounds_its_factor_and_its_product_and_the_gradient_has_the_same_mask() -> None:
    """The mask holds 0 and 1 / 0.7 as a float16 number; what is kept is that times x, rounded."""
    x = half(3.0).repeat(4096)
    output, gradients = differentiate(lambda x: F.dropout(x, 0.3), half(1.0).repeat(4096), x=x)
    factor = torch.tensor(1 / 0.7).half()
    assert set(output.unique().tolist()) == {0.0, (3 * factor.float()).half().item()}
    assert torch.equal(gradients["x"], torch.where(output == 0, 0.0, factor.float()))
    assert float((output == 0).double().mean()) == pytest.approx(0.3, abs=0.05)
