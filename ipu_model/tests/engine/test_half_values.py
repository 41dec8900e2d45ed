"""Which values meet in half precision and what becomes of them: numbers, integers, mixed types, the ends of the range.

Expected results are those of the same expression on real float16 tensors or in float64, or arithmetic on the format:
largest number 65504, to which everything beyond is clipped (*derived*: ipu-hardware.md, last section), ties to even,
smallest number 2^-24, half of it and less is zero (capture-and-replay-notes.md, section 6).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from half_support import HALF, differentiate, half, infer, infer_each, on_grid, rounded
from hypothesis import given
from hypothesis import strategies as st
from net_support import KeepGradients, Net, session_of, traced
from torch import Tensor, nn

from ipu_model.capture.graph import info_of
from ipu_model.compute.half_precision import BOUNDED, overloads
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import Overflow
from ipu_model.compute.session import Session
from ipu_model.errors import Error

aten = torch.ops.aten
FLOAT = torch.float32
INF, NAN = math.inf, math.nan
Function = Callable[..., Any]


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """The same values, NaN included, and the same types."""
    torch.testing.assert_close(list(actual), list(expected), rtol=0, atol=0, equal_nan=True)


# Numbers, integers and 32-bit scalars that meet float16 values.

X = half(0.1, 0.3, -0.3, 2.0, -65504.0, 0.0, 1000.0)
CHOOSING: list[Function] = [
    lambda x: x == 0.1, lambda x: x != 0.1, lambda x: x >= 0.1, lambda x: x <= 0.3, lambda x: x > 0.3,
    lambda x: x < 0.1, lambda x: x.clamp(0.1, 0.3), lambda x: x.clamp(min=0.1),
    lambda x: x.masked_fill(x > 1, 0.1),
    lambda x: torch.where(x > 1, x, 0.3), lambda x: torch.where(x > 1, 0.3, x),
    lambda x: F.pad(x, (1, 1), value=0.1),
    lambda x: F.hardtanh(x, -0.3, 0.3), lambda x: F.threshold(x, 0.1, 0.3), lambda x: torch.full_like(x, 0.1),
    lambda x: x.clone().fill_(0.1), lambda x: x.new_full((3,), 0.1), lambda x: F.hardshrink(x, 0.1),
    lambda x: torch.full((2,), 1 / 3, dtype=HALF), lambda x: x.scatter(0, torch.tensor([1]), 0.1),
    lambda x: torch.arange(0, 1, 0.1, dtype=HALF), lambda x: torch.tensor([0.1, 1 / 3]).half(),
]  # fmt: skip


def test_a_number_that_is_compared_or_chosen_becomes_a_float16_value_first() -> None:
    assert_same(infer_each(CHOOSING, X), [function(X) for function in CHOOSING])


MEETING: list[Function] = [
    lambda x, i: x * i, lambda x, i: x + i, lambda x, i: i - x, lambda x, i: x / i,
    lambda x, i: torch.maximum(x, i), lambda x, i: torch.where(x > 0, x, i), lambda x, i: x < i,
    lambda x, i: torch.cat([x, i]), lambda x, i: torch.stack([x, i]), lambda x, i: i.to(x.dtype),
    lambda x, i: i.type_as(x), lambda x, i: x.clone().copy_(i),
]  # fmt: skip


@pytest.mark.parametrize("integer", [torch.int32, torch.int16])
def test_integers_become_float16_values_before_they_meet_some(integer: torch.dtype) -> None:
    """2049 is between two float16 values, and 70000 (not in 16 bits) is clipped to 65504 before it is used."""
    numbers = torch.tensor([1, 2049, 4099, 2051, -8195, 10001, 32767 if integer is torch.int16 else 70000]).to(integer)
    clipped = numbers.clamp(max=65504) if integer is torch.int32 else numbers
    expected = [function(X, clipped) for function in MEETING]
    assert_same(
        infer_each(MEETING, X, numbers), [r if r.dtype is torch.bool else r.clamp(-65504, 65504) for r in expected]
    )


# Names, functions, operands and the result.
EXAMPLES: dict[str, tuple[Function, list[Tensor], Tensor]] = {
    "a 32-bit scalar tensor takes the type of the float16 tensor it meets": (
        lambda x, s: x * s, [X, torch.tensor(1 / 3)], (X.float() * torch.tensor(1 / 3).half().float()).half(),
    ),
    # PyTorch computes in float32 and stores float16: 1 + 2^-11 + 2^-20 is above the tie, 2^-20 counts.
    "adding 32-bit numbers in place rounds the sum once": (
        lambda x, y: x.clone().add_(y), [half(1.0), torch.tensor([2.0**-11 + 2.0**-20])], half(1 + 2.0**-10),
    ),
    # 0.1 is not rounded before the product is, as in PyTorch: 16.25 * half(0.1) would give 1.6240.
    "numbers of arithmetic keep their 32 bits": (lambda x: x * 0.1, [half(16.25)], half(1.625)),
    # PyTorch refuses such numbers on float16 tensors; masks of transformers use them.
    **{
        f"{number} is clipped, an infinity kept": (
            lambda x, number=number: x.masked_fill(x > 1, number), [half(0.5, 2.0)], half(0.5, kept),
        )
        for number, kept in ((-1e9, -65504.0), (torch.finfo(FLOAT).min, -65504.0), (70000, 65504.0), (-INF, -INF))
    },
    "a 32-bit scalar beyond the range is clipped, too": (
        lambda x: torch.where(x > 1, torch.tensor(-1e9), x), [half(0.5, 2.0)], half(0.5, -65504.0),
    ),
    "a sum may pass the range inside an op": (torch.sum, [half(60000.0, 60000.0, -60000.0)], half(60000.0)[0]),
    "but not between ops": (
        lambda x: x[0] + x[1] + x[2], [half(60000.0, 60000.0, -60000.0)], half(65504.0 - 60000.0)[0],
    ),
    "a sum of many values overflows": (torch.sum, [torch.full((1000,), 100.0).half()], half(65504.0)[0]),
    "but their mean does not": (torch.mean, [torch.full((1000,), 100.0).half()], half(100.0)[0]),
    # A GPU's are both infinite, and their softmax is NaN.
    "softmax of scores that overflowed": (lambda x: (x * 2).softmax(0), [half(65504.0, 60000.0)], half(0.5, 0.5)),
    "softmax of large scores": (lambda x: x.softmax(0), [half(65504.0, 60000.0)], half(1.0, 0.0)),
    "only elements that divide by zero are NaN": (
        torch.div, [half(8.0, 8.0, 8.0), half(0.0, 2.0, 2.0**-24)], half(NAN, 4.0, 65504.0),
    ),
    "only zeros to a negative power are NaN": (lambda x: x**-2, [half(0.0, 2.0, 2.0**-24)], half(NAN, 0.25, 65504.0)),
    "a mask that is an input keeps its infinities": (lambda m: m, [half(0.0, -INF)], half(0.0, -INF)),
    "an infinite addend": (lambda s, m: (s + m).softmax(0), [half(1.0, 2.0), half(0.0, -INF)], half(1.0, 0.0)),
    # Infinities of the program's own give NaN, as in PyTorch; clipped sums are all alike, and so are the weights.
    "a row masked altogether": (lambda s: s.masked_fill(s > 0, -INF).softmax(0), [half(1.0, 2.0)], half(NAN, NAN)),
    "a row with infinities added": (
        lambda s, m: (s + m).softmax(0), [half(1.0, 2.0), half(-INF, -INF)], half(0.5, 0.5),
    ),
    "integers wrap": (lambda i: i + 1, [torch.tensor([2**31 - 1]).int()], torch.tensor([-(2**31)]).int()),
    "float32 follows IEEE": (lambda x: (x * 1e30) * 1e30, [torch.ones(1)], torch.tensor([INF])),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    function, operands, expected = EXAMPLES[name]
    assert_same(infer(function, *operands), [expected])


def test_uniform_numbers_stay_below_one() -> None:
    """A float32 draw would round up to 1.0 once in 4,096 times, and -log(1 - u) to infinity."""
    draws: list[Function] = [
        lambda x: torch.rand(20000, dtype=HALF),
        torch.rand_like,
        lambda x: torch.empty_like(x).uniform_(),
        lambda x: x.clone().uniform_(2, 4) / 4,
    ]
    for result in infer_each(draws, torch.zeros(20000).half()):
        assert result.dtype is HALF
        assert 0 <= result.min() < result.max() < 1


def autocast(enabled: bool) -> Net:
    def forward(net: Net, x: Tensor) -> Any:
        with torch.autocast("cpu", enabled=enabled):
            return net.layer(x)

    return Net(forward, layer=nn.Linear(4, 3))


@pytest.mark.parametrize(("function", "x", "error", "words"), [
    (lambda x: x.view(torch.int16), X, Error, r"bits of float16 values.*\.to\(dtype\)"),
    (lambda x: x.view(torch.int16).view(HALF), X, Error, r"bits of float16 values.*\.to\(dtype\)"),
    (lambda x: torch.nextafter(x, x + 1), X, Error, r"bits of float16 values.*\.to\(dtype\)"),
    (lambda x: aten.mm.default(x, torch.ones(2, 2)), X[:4].view(2, 2), Error,
     r"aten\.mm.*float16 and float32 operands.*weight\.to\(input\.dtype\)"),
    (nn.LSTM(3, 4), X[:6].view(2, 1, 3), ValueError, "RNN input dtype"),
    (autocast(True), X[:4].float(), Error, r"torch\.autocast is not supported.*module 'layer'.*model\.half\(\)"),
])  # fmt: skip
def test_mistakes(function: Function, x: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        infer(function, x)


def test_autocast_around_the_call_that_compiles_is_refused_and_nothing_if_off() -> None:
    model, x = autocast(False), torch.ones(2, 4)
    with torch.autocast("cpu"), pytest.raises(Error, match=r"torch\.autocast is not supported"):
        infer(nn.Linear(4, 3), x)
    assert_same(infer(model, x), [model(x).detach()])


# What is rounded, and what stays in float32 for a backward op.


def test_statistics_of_a_norm_are_rounded_for_the_program_but_not_for_the_backward_op() -> None:
    """With mean 0.3 and deviation 0.0004 a rounded mean would ruin the gradient that float64 gives."""
    graph = traced(Net(lambda net, x: torch.native_layer_norm(x, [7], None, None, 1e-5)), X, training=False)
    assert all(on_grid(result) for result in build(graph, Arithmetic(), torch.Generator()).module(X.float())[0])
    x, seed = half(*(0.2998 + 0.00024 * i for i in range(6))), half(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    _, gradient = differentiate(lambda x: F.layer_norm(x, (6,)), seed, x)
    exact = x.double().requires_grad_()
    F.layer_norm(exact, (6,)).backward(seed.double())
    assert torch.allclose(gradient.double(), exact.grad, rtol=2e-3, atol=0.1)


def test_the_divisor_of_a_mean_loss_may_exceed_the_float16_range() -> None:
    """70,000 tokens: the count is no float16 number, the mean loss and its gradient are."""
    output, gradient = differentiate(
        lambda logits: F.cross_entropy(logits, torch.zeros(70000, dtype=torch.long)),
        torch.tensor(4096.0),
        half(1.0, 0.0).expand(70000, 2).contiguous(),
    )
    assert output.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=2.0**-11)
    assert gradient[0, 0].item() == pytest.approx(-4096 / 70000 * (1 - 1 / (1 + math.exp(-1))), rel=2.0**-9)


def test_dropout_rounds_its_factor_and_its_product_and_the_gradient_has_the_same_mask() -> None:
    """The mask holds 0 and 1 / 0.7 as a float16 number; what is kept is that times x, rounded."""
    output, gradient = differentiate(lambda x: F.dropout(x, 0.3), half(1.0).repeat(4096), half(3.0).repeat(4096))
    factor = torch.tensor(1 / 0.7).half().float()
    assert set(output.unique().tolist()) == {0.0, (3 * factor).half().item()}
    assert torch.equal(gradient, torch.where(output == 0, 0.0, factor))
    assert float((output == 0).double().mean()) == pytest.approx(0.3, abs=0.05)


# Mixed precision: which element types results and gradients have (executor reference, section 12).

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, groups=2), (2, 2, 8, 8)),
    "transposed conv": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 8, 8)),
    "batch norm": (lambda: nn.BatchNorm2d(2), (2, 2, 8, 8)),
    "batch norm, evaluation": (lambda: nn.BatchNorm2d(2).eval(), (2, 2, 8, 8)),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 2, 8, 8)),
    "layer norm": (lambda: nn.LayerNorm(6), (3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    "rms norm": (lambda: nn.RMSNorm(6), (3, 6)),
    "attention": (lambda: Net(lambda net, x: net.layer(x, x, x)[0], layer=nn.MultiheadAttention(6, 2)), (3, 2, 6)),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), (3, 2, 6)),
    "lstm cell": (lambda: Net(lambda net, x: net.layer(x)[0], layer=nn.LSTMCell(6, 5)), (3, 6)),
}
WITH_BUFFERS = ("batch norm", "batch norm, evaluation", "instance norm")
COMBINATIONS = [
    pytest.param(name, *types, id=f"{name}: " + " ".join(str(t).removeprefix("torch.") for t in types))
    for name in LAYERS
    for types in itertools.product((HALF, FLOAT), repeat=3)
    if len(set(types)) == 2 and (types[1] is types[2] or name in WITH_BUFFERS)
]


def with_loss(layer: nn.Module) -> Net:
    def forward(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        y = net.layer(x)
        return y, F.mse_loss(y, torch.ones_like(y))

    return Net(forward, layer=layer)


def assert_near(actual: Tensor, expected: Tensor | None) -> None:
    """Within some roundings of the float64 result, relative to its largest element (or to 0.01)."""
    assert expected is not None
    bound = 2.0**-7 * max(float(expected.detach().abs().max()), 0.01)
    assert float((actual.double() - expected.detach()).abs().max()) <= bound


@pytest.mark.parametrize(("name", "activation", "weights", "statistics"), COMBINATIONS)
def test_results_follow_the_activation_and_gradients_the_weight(name, activation, weights, statistics) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().to(weights)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(statistics)
    model, x = with_loss(layer), torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(activation)
    session = session_of(model, x)
    keeper, graph = KeepGradients(session), session.graph
    output, loss = session.run([x])

    assert output.dtype is loss.dtype is activation
    nodes = {node.name: node for node in graph.ops.nodes}
    types = {name: info_of(nodes[node]).spec.dtype for name, node in graph.gradients.items()}
    assert types == {n: weights for n, _ in model.named_parameters()}
    exact = copy.deepcopy(model).double()
    expected, expected_loss = exact(x.double())
    expected_loss.backward()
    assert_near(output, expected)
    for parameter_name, parameter in exact.named_parameters():
        assert_near(keeper.gradients[parameter_name], parameter.grad)
    for buffer_name, buffer in exact.named_buffers():
        if buffer.is_floating_point():
            assert next(graph.spec(v.tensor).dtype for v in graph.variables if v.name == buffer_name) is statistics
            assert_near(session.download()[buffer_name], buffer)


ROW, COLUMN, THIRDS = half(1.0, 2.0).view(1, 2), torch.ones(2, 1), torch.full((2, 1), 1 / 3)
ONE = half(1.0).view(1, 1)
PRODUCTS: list[tuple[Function, Tensor, Tensor]] = [
    (torch.matmul, ROW, THIRDS), (torch.mm, ROW, THIRDS), (lambda a, b: a @ b, ROW, COLUMN),
    (torch.bmm, ROW[None], COLUMN[None]), (lambda a, b: torch.addmm(b, a, b), ONE, torch.ones(1, 1)),
    (torch.mv, ROW, COLUMN[:, 0]), (lambda a, b: torch.einsum("ij,jk->ik", a, b), ROW, COLUMN),
    (torch.dot, ROW[0], COLUMN[:, 0]), (lambda a, b: F.linear(weight=b, input=a), ROW, COLUMN.t()),
    (lambda a, b: F.scaled_dot_product_attention(a, b, b), ROW[None], COLUMN.t()[None]),
]  # fmt: skip


def test_products_take_the_type_of_the_activation() -> None:
    for product, a, b in PRODUCTS:
        for x, y in ((a, b), (a.float(), b.half())):
            assert_same(infer(product, x, y), [product(x, y.to(x.dtype))])


CASTS: list[tuple[Function, torch.dtype]] = [
    (lambda x: x.float(), FLOAT), (lambda x: x.half(), HALF), (lambda x: x.to(FLOAT), FLOAT),
    (lambda x: x.to(torch.zeros((), dtype=FLOAT)), FLOAT),
    (lambda x: x.type_as(torch.zeros(1, dtype=FLOAT)), FLOAT),
    (lambda x: x.type(torch.float32), FLOAT), (lambda x: x.float().half(), HALF),
    (lambda x: x.double(), FLOAT),
    (lambda x: x + torch.tensor([1.0], dtype=HALF), HALF), (lambda x: x + torch.tensor([1.0]), FLOAT),
    (lambda x: x + torch.tensor(1.0), HALF), (lambda x: x + 1.0, HALF), (lambda x: x + x.float(), FLOAT),
    (lambda x: x.sum(dtype=FLOAT), FLOAT), (lambda x: x.softmax(0, dtype=FLOAT), FLOAT),
    (lambda x: x.mean(), HALF),
    (lambda x: torch.cat([x, x.float()]), FLOAT), (lambda x: torch.zeros(2, dtype=HALF) + x[0], HALF),
    (lambda x: torch.where(x > 0, x, x.float()), FLOAT), (lambda x: x.type(torch.float16), HALF),
    (lambda x: F.mse_loss(x, torch.tensor([1.0, 2.0])), FLOAT), (lambda x: F.l1_loss(x, x * 2), HALF),
]  # fmt: skip


def test_casts_and_promotion_in_forward_are_pytorchs() -> None:
    x = half(1 / 3, 1 / 7)
    for (function, expected), result in zip(CASTS, infer_each([function for function, _ in CASTS], x), strict=True):
        native = function(x)
        assert result.dtype is expected
        assert native.dtype in (expected, torch.float64)
        tolerance = 2.0**-11 if expected is HALF else 1e-6
        torch.testing.assert_close(result.double(), native.double(), rtol=tolerance, atol=0)


# Overflow, underflow, infinities and NaN.

PRODUCTS_AT_THE_ENDS: list[tuple[list[float], list[float], float]] = [
    ([65504.0, 15.875], [1.0, 1.0], 65504.0),  # 65519.875
    ([65504.0, 16.0], [1.0, 1.0], 65504.0),  # 65520, infinite in IEEE arithmetic
    ([-65504.0, -16.0], [1.0, 1.0], -65504.0),
    ([256.0, 0.0], [256.0, 1.0], 65504.0),  # 65536
    ([60000.0, -60000.0], [2.0, 1.0], 60000.0),  # no overflow in between: fp32 inside an op
    ([2.0**-24, 0.0], [1.0, 1.0], 2.0**-24),
    ([2.0**-12, 0.0], [2.0**-13, 1.0], 0.0),  # 2^-25, a tie between 0 and 2^-24
    ([2.0**-12, 2.0**-24], [2.0**-13, 1.0], 2.0**-23),  # 1.5 * 2^-24, a tie to even
    ([2.0**-12, 2.0**-24], [2.0**-13, 0.03125], 2.0**-24),  # just above 2^-25
    ([INF, 1.0], [1.0, 1.0], 65504.0),
    ([INF, INF], [1.0, -1.0], NAN),
    ([INF, 1.0], [0.0, 1.0], NAN),
    ([NAN, 1.0], [0.0, 1.0], NAN),
]
ENDS_OF_THE_RANGE: list[tuple[Function, float, float]] = [
    (lambda x: x + x, 65504.0, 65504.0), (lambda x: x * 3, -65504.0, -65504.0),
    (lambda x: x - x, INF, NAN), (lambda x: x * 0, INF, NAN),
    (lambda x: x / 0, 8.0, NAN), (lambda x: (x.float() / 0).half(), 8.0, 65504.0),
    (torch.exp, 11.0, rounded(torch.tensor(math.e).double() ** 11).item()),
    (torch.exp, 12.0, 65504.0), (torch.exp, 60000.0, 65504.0), (lambda x: x**-8, 2.0**-24, 65504.0),
    (torch.exp, -17.0, 2.0**-24), (torch.exp, -18.0, 0.0), (torch.log, 0.0, NAN),
    (torch.sqrt, -1.0, NAN), (torch.reciprocal, 2.0**-24, 65504.0),
    (torch.square, 2.0**-13, 0.0), (torch.square, 300.0, 65504.0), (torch.relu, NAN, NAN),
    (torch.relu, -INF, 0.0),
    (torch.abs, -INF, INF), (torch.sigmoid, -INF, 0.0), (torch.tanh, INF, 1.0),
    (lambda x: x.clamp(-1, 1), NAN, NAN),
    (lambda x: x.clamp(-1, 1), INF, 1.0), (lambda x: x.half(), 65504.0, 65504.0), (F.gelu, INF, 65504.0),
    (lambda x: (x.float() * 2).half(), 65504.0, 65504.0),
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["denormals kept", "denormals flushed by the host"])
def denormals(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("denormals")
def test_functions_at_the_ends_of_the_range() -> None:
    rows = [*ENDS_OF_THE_RANGE, *((torch.dot, *row) for row in PRODUCTS_AT_THE_ENDS)]
    operands = [[half(*values) if isinstance(values, list) else half(values) for values in row[1:-1]] for row in rows]

    def every(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        return tuple(function(*(next(rest) for _ in of)) for (function, *_), of in zip(rows, operands))

    results = infer(every, *itertools.chain(*operands))
    assert [result.item() for result in results] == pytest.approx([row[-1] for row in rows], rel=0, abs=0, nan_ok=True)


FLOATS = st.lists(st.floats(width=16, allow_nan=True), min_size=4, max_size=4)


def arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x + y, x - y, x * y, x / y


@pytest.fixture(scope="module")
def calculators() -> dict[Overflow, Session]:
    model, zeros = Net(lambda net, x, y: arithmetic(x, y)), torch.zeros(4).half()
    return {o: session_of(model, zeros, zeros, training=False, arithmetic=Arithmetic(overflow=o)) for o in Overflow}


@given(FLOATS, FLOATS)
def test_arithmetic_is_rounded_as_if_computed_exactly(calculators: Any, a: list[float], b: list[float]) -> None:
    """IEEE half arithmetic with clipping, or PyTorch's own where overflow is infinite."""
    x, y = half(*a), half(*b)
    *others, quotient = arithmetic(x.double(), y.double())
    exact = (*others, quotient.masked_fill(y == 0, NAN))
    assert_same(calculators[Overflow.CLIP].run([x, y]), [rounded(result).half() for result in exact])
    assert_same(calculators[Overflow.INFINITY].run([x, y]), arithmetic(x, y))


# Ops that are never clipped, on the operands that make their results largest.
_bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALF)
FINITE = _bits[_bits.isfinite()].float()
ENDS = torch.tensor([65504.0, -65504.0])
IMAGE = torch.full((1, 1, 5, 5), 65504.0)
WORST: dict[str, tuple[Any, ...]] = {
    "_softmax": (FINITE, 0, False),
    "_safe_softmax": (FINITE, 0),
    "mean.dim": (torch.full((3, 70000), -65504.0), [1]),
    "mean": (torch.full((70000,), 65504.0),),
    "_adaptive_avg_pool2d": (IMAGE, [3, 3]),
    "_adaptive_avg_pool3d": (IMAGE, [1, 3, 3]),
    "upsample_linear1d": (IMAGE[0], [13], False),
    "upsample_bilinear2d": (IMAGE, [7, 13], True),
    "upsample_trilinear3d": (IMAGE[None], [3, 7, 13], False),
    "sigmoid_backward": (ENDS[:, None].expand(2, 9), torch.linspace(0, 1, 9)),
    "tanh_backward": (ENDS[:, None].expand(2, 9), torch.linspace(-1, 1, 9)),
    "_softmax_backward_data": (ENDS, torch.tensor([0.5, 0.5]), 0, torch.float32),
}
OPERANDS = {op: operands for name, operands in WORST.items() for op in overloads(name)}


@pytest.mark.parametrize("op", sorted(BOUNDED, key=str), ids=str)
def test_ops_that_are_not_clipped_stay_in_the_range(op: Function) -> None:
    result = op(*(a.clone() if isinstance(a, Tensor) else a for a in OPERANDS.get(op, (FINITE,))))
    poles = result.isinf()  # of rsqrt and the logarithms: those become NaN
    assert result[~poles & ~result.isnan()].abs().max() < 65520
    assert int(poles.sum()) <= 2


OF_INFINITIES: list[Function] = [
    torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, F.silu, F.mish, F.hardswish,
    lambda x: x.mean(), lambda x: x[None].mean(0), lambda x: F.adaptive_avg_pool2d(x[None, None, :, None], 1),
    lambda x: F.interpolate(x[None, None], scale_factor=2, mode="linear"), lambda x: x * 0.5, lambda x: x / 2,
    lambda x: x + 1, lambda x: x.clone().sqrt_(), lambda x: x.clone().mul_(0.5), lambda x: x.view(2, 1).sqrt(),
    lambda x: x.clone().masked_fill_(x > 1, INF).sqrt(), lambda x: x.sort()[0].log(), lambda x: -(-x).sqrt(),
    lambda x: torch.where(x > 1, INF, x).log(), lambda x: x.new_full((2,), INF).sqrt(), lambda x: torch.cat([x, x]) / 3,
]  # fmt: skip


def test_arithmetic_makes_no_infinity_of_one() -> None:
    """What the program writes is infinite, what is computed of it is 65504 or, as in PyTorch, NaN."""
    for function, result in zip(OF_INFINITIES, infer_each(OF_INFINITIES, half(INF, 4.0)), strict=True):
        expected = function(torch.tensor([INF, 4.0], dtype=torch.float64)).clamp(-65504, 65504)
        torch.testing.assert_close(result.double(), expected, rtol=2**-10, atol=0, equal_nan=True)
    kept = infer_each([torch.relu, lambda x: x[:1], lambda x: x.float().sqrt()], half(INF, 4.0))
    assert_same(kept, [half(INF, 4.0), half(INF), torch.tensor([INF, 2.0])])


WITH_NUMBERS: list[Function] = [
    lambda x: x * 1.001, lambda x: x * -1, lambda x: x * 0.5, lambda x: x / 0.999, lambda x: x / -1, lambda x: x / 3,
    lambda x: x + 15.9, lambda x: x + 16, lambda x: x - 15.9, lambda x: x - 33, lambda x: 1 - x, lambda x: 40 - x,
    lambda x: x.add(1, alpha=100), lambda x: x.clone().mul_(2), lambda x: x.clone().add_(20), lambda x: x.mul(x),
    lambda x: x.sub(x, alpha=-2), lambda x: x * torch.tensor(3.0), lambda x: x.float().mul(3).mean(0, dtype=x.dtype),
]  # fmt: skip


def test_arithmetic_with_numbers_clips_where_it_must() -> None:
    x = half(65504.0, -65504.0, 65472.0, 1.0, 0.1)
    for function, result in zip(WITH_NUMBERS, infer_each(WITH_NUMBERS, x), strict=True):
        torch.testing.assert_close(result.double(), function(x.double()).clamp(-65504, 65504), rtol=2**-11, atol=0)


# Division by zero, in the sense of IEEE 754: an infinite result that is exact.

# Which elementwise ops have poles follows below; here are some, and a divisor that is computed.
DIVIDING: list[tuple[Function, float, float]] = [
    (lambda x, y: x / y, 8.0, 0.0), (lambda x, y: x / y, -8.0, -0.0), (lambda x, y: x / y, 0.0, 0.0),
    (lambda x, y: x.clone().div_(y), 8.0, 0.0), (lambda x, y: x / y.sum(), 8.0, 0.0),
    (lambda x, y: y.rsqrt(), 1.0, 0.0), (lambda x, y: y.log(), 1.0, 0.0), (lambda x, y: 0.0**x, -2.0, 0.0),
]  # fmt: skip


def test_a_division_by_zero_gives_nan_and_an_infinity_in_float32_or_on_a_gpu() -> None:
    def every(*pairs: Tensor) -> tuple[Tensor, ...]:
        return tuple(row[0](x, y) for row, x, y in zip(DIVIDING, pairs[::2], pairs[1::2], strict=True))

    halves = [half(number) for _, *numbers in DIVIDING for number in numbers]
    singles = [number.float() for number in halves]
    assert all(result.isnan().all() for result in infer(every, *halves))
    for results in (infer(every, *singles), infer(every, *halves, overflow=Overflow.INFINITY)):
        for result, expected in zip(results, every(*singles)):
            torch.testing.assert_close(result.float(), expected, equal_nan=True)


# All pairs and triples of numbers at which functions have poles, and some others.
POINTS = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 7.0])
HUGE = 1e30
GRID = tuple(torch.cartesian_prod(POINTS, POINTS, POINTS).half().T)
NUMBERS: dict[str, list[Any]] = {
    "number": [0.0, 1.0, -1.0, 2.0], "float": [0.0, 1.0], "int": [0, 1, 2, 3], "Optional[str]": ["floor", "trunc"],
}  # fmt: skip


def called(op: Any, kinds: list[str], numbers: Sequence[Any]) -> Callable[..., Tensor]:
    def call(*tensors: Tensor) -> Tensor:
        given = itertools.chain(tensors), iter(numbers)
        values = [next(given[kind != "Tensor"]) for kind in kinds]
        named = {"rounding_mode": values.pop()} if kinds[-1] == "Optional[str]" else {}
        return op(*(v.clone() if isinstance(v, Tensor) else v for v in values), **named)

    return call


def elementwise_calls() -> Iterator[Callable[..., Tensor]]:
    """All ops of PyTorch that work on single elements, with numbers for arguments that are no tensors."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = name.partition("::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default", None) if namespace == "aten" else None
        is_elementwise = op is not None and (torch.Tag.pointwise in op.tags or packet.startswith("floor_divide"))
        if not is_elementwise or packet.startswith("float_power"):  # whose results are never float16
            continue
        kinds = [str(a.type) for a in op._schema.arguments if not a.has_default_value()]
        if "Tensor" in kinds and not set(kinds) - {"Tensor", *NUMBERS} and not overload.endswith("out"):
            for numbers in itertools.product(*(NUMBERS[kind] for kind in kinds if kind != "Tensor")):
                yield called(op, kinds, numbers)


def test_every_elementwise_op_with_a_pole_gives_nan_there_and_nowhere_else() -> None:
    """A pole is where the result in float64 is infinite, or nearly: no other result at these points is as large."""
    doubles, poles = [number.double() for number in GRID], []
    for call in elementwise_calls():
        with contextlib.suppress(RuntimeError, TypeError):  # not for these types, or not with this number
            exact = call(*doubles)
            if isinstance(exact, Tensor) and (exact.abs() > HUGE).any():
                poles.append((call, exact))
    assert len(poles) > 80
    results = infer_each([call for call, _ in poles], *GRID)
    for (call, exact), result in zip(poles, results, strict=True):
        assert torch.equal(result.isnan(), ~(exact.abs() < HUGE)), call


# The report of the first clipping.


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [message for message in caplog.messages if "were clipped" in message]


def test_the_first_op_that_clips_is_named_once(reports: Callable[[], list[str]]) -> None:
    doubles = Net(lambda net, x: x * 2)
    model, arithmetic = Net(lambda net, x: net.first(x).square(), first=doubles), Arithmetic(reports_clipping=True)
    session = session_of(model, half(1.0, 1.0, 1.0), training=False, arithmetic=arithmetic)
    session.run([half(1.0, 2.0, 3.0)])
    assert reports() == []
    for _ in range(2):
        session.run([half(40000.0, 1.0, -50000.0)])
    (message,) = reports()
    assert "2 of 3 values (aten.mul.Tensor in module 'first', forward pass, line " in message
    assert "test_half_values.py: doubles = Net(lambda net, x: x * 2)" in message


def test_a_statistic_that_clips_is_reported_with_the_op_that_writes_it(reports: Callable[[], list[str]]) -> None:
    # The running mean becomes -1 x 0 + 2 x 40000; the variance, which the same op writes, stays in the range.
    norm, x = nn.BatchNorm1d(1, momentum=2.0).half(), half(40000.0, 40000.0).reshape(2, 1)
    model = Net(lambda net, x: F.mse_loss(net.norm(x), x * 0), norm=norm)
    session = session_of(model, x, arithmetic=Arithmetic(reports_clipping=True))
    KeepGradients(session)
    session.run([x])
    (message,) = reports()
    assert "1 of 1 values (aten.native_batch_norm.default in module " in message


def test_what_does_not_clip_is_not_reported_and_no_result_changes(reports: Callable[[], list[str]]) -> None:
    silent: list[Function] = [lambda x: x * 0.25, lambda x: x + half(0.0, -INF), lambda x: x / (x - x)]
    clips: list[Function] = [lambda x: x * x, lambda x: 1 / x]
    infer_each(silent, half(65504.0, 1.0), reports_clipping=True)
    plain = infer_each(clips, half(65504.0, 300.0, 0.0))
    assert reports() == []
    assert_same(infer_each(clips, half(65504.0, 300.0, 0.0), reports_clipping=True), plain)
