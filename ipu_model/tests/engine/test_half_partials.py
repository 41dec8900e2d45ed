"""Half partials (`Options.Precision.setPartialsType`): rounding within a reduction, an approximation.

A reduction of K terms stores K / CHUNK partial sums. If the rounding errors are independent,
each of relative size
2^-12.5 or so of the running total, their sum grows with the square root of the number of stores.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from half_oracle import on_grid
from half_support import Case, Op, normal
from torch import Tensor
from tracing_support import ops_of, traced

from ipu_model.compute import partials
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import round_to_half_

aten = torch.ops.aten
LONG = {"x": normal(8, 512), "w": normal(24, 512, scale=0.05)}
WIDE = {"x": normal(2, 256, 6, 6), "w": normal(16, 256, 3, 3, scale=0.02), "b": normal(16, scale=0.05)}
CASES: dict[str, Case] = {case.name: case for case in [
    Case("linear", F.linear, {"input": LONG["x"], "weight": LONG["w"], "bias": normal(24)}),
    Case("mm", torch.mm, {"input": LONG["x"], "mat2": normal(512, 24, scale=0.05)}),
    Case("bmm", torch.bmm, {"input": normal(2, 8, 512), "mat2": normal(2, 512, 24, scale=0.05)}),
    Case("mv", torch.mv, {"input": LONG["x"], "vec": normal(512)}),
    Case("dot", torch.dot, {"input": normal(512), "tensor": normal(512)}),
    Case("baddbmm", torch.baddbmm,
         {"input": normal(2, 8, 24), "batch1": normal(2, 8, 512), "batch2": normal(2, 512, 24, scale=0.05)}),
    Case("conv1d", F.conv1d, {"input": normal(2, 256, 12), "weight": normal(16, 256, 3, scale=0.02)}),
    Case("conv2d", F.conv2d, {"input": WIDE["x"], "weight": WIDE["w"], "bias": WIDE["b"]}),
    Case("conv2d grouped", lambda input, weight, bias: F.conv2d(input, weight, bias, groups=2, padding=1),
         {"input": normal(2, 256, 6, 6), "weight": normal(16, 128, 3, 3, scale=0.03), "bias": WIDE["b"]}),
    Case("conv2d depthwise", lambda input, weight: F.conv2d(input, weight, groups=16),
         {"input": normal(2, 16, 6, 6), "weight": normal(16, 1, 3, 3, scale=0.3)}),
    Case("conv_transpose2d", lambda input, weight, bias: F.conv_transpose2d(input, weight, bias, stride=2),
         {"input": WIDE["x"], "weight": normal(256, 16, 3, 3, scale=0.02), "bias": WIDE["b"]}),
    Case("conv_transpose2d grouped", lambda input, weight: F.conv_transpose2d(input, weight, groups=2),
         {"input": WIDE["x"], "weight": normal(256, 8, 3, 3, scale=0.03)}),
    Case("conv3d", F.conv3d,
         {"input": normal(1, 128, 4, 4, 4), "weight": normal(8, 128, 2, 2, 2, scale=0.03)}),
]}  # fmt: skip


def computed(case: Case, *, half_partials: bool) -> dict[str, Tensor]:
    """Return output and gradients of `case` in half precision, as containers."""
    module = Op(case, torch.float16)
    graph = traced(module)
    state = module.state_dict()
    replay = build(graph, Arithmetic(half_partials=half_partials))
    with torch.no_grad():
        outputs, gradients = replay.module(*(state[v.name].float() for v in graph.variables), seed_of(case).float())
    return {"output": outputs[0], **dict(zip(graph.gradients, gradients))}


def seed_of(case: Case) -> Tensor:
    shape = Op(case, torch.float32)().shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).half()


def exact(case: Case) -> dict[str, Tensor]:
    module = Op(case, torch.float64)
    output = module()
    gradients = torch.autograd.grad(output, list(module.parameters()), seed_of(case).double())
    return {"output": output, **{n: g for (n, _), g in zip(module.named_parameters(), gradients)}}


def error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square error relative to the root mean square of the expected values."""
    exact_values = expected.detach()
    return float((actual.double() - exact_values).norm() / exact_values.norm())


@pytest.mark.parametrize("name", CASES)
def test_results_are_rounded_partial_sums_of_the_right_ones(name: str) -> None:
    """At most 8 stores here (512 terms): 8 independent errors of up to 2^-11 of a total, and a final one."""
    case = CASES[name]
    results, truth = computed(case, half_partials=True), exact(case)
    for key, tensor in results.items():
        assert on_grid(tensor), key
        assert tensor.shape == truth[key].shape
        assert error(tensor, truth[key]) < 9**0.5 * 2.0**-11, key


@pytest.mark.parametrize("name", ["mm", "bmm", "conv2d", "conv2d grouped", "conv_transpose2d"])
def test_more_stores_mean_more_error_growing_like_their_square_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, truth = CASES[name], exact(CASES[name])["output"]
    single = error(computed(case, half_partials=False)["output"], truth)
    assert error(computed(case, half_partials=True)["output"], truth) > 1.3 * single
    errors = []
    for chunk in (512, 64, 16, 4):
        monkeypatch.setattr(partials, "CHUNK", chunk)
        errors.append(error(computed(case, half_partials=True)["output"], truth))
    assert errors == sorted(errors)
    assert 1.3 < errors[3] / errors[2] < 3.0, "4 times the stores: about twice the error"


def test_a_reduction_of_one_chunk_is_not_changed() -> None:
    case = Case("mm", torch.mm, {"input": normal(8, partials.CHUNK), "mat2": normal(partials.CHUNK, 24)})
    with_half, with_single = computed(case, half_partials=True), computed(case, half_partials=False)
    assert torch.equal(with_half["output"], with_single["output"])


def test_gradients_of_weights_store_partials_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 samples of 2x2 positions: with 8 channels times 9 taps a chunk, a store after 18 samples."""
    weights = {"input": normal(64, 8, 4, 4), "weight": normal(8, 8, 3, 3, scale=0.2)}
    case = Case("conv2d", F.conv2d, weights)
    truth = exact(case)["weight"]
    plain = error(computed(case, half_partials=True)["weight"], truth)
    monkeypatch.setattr(partials, "CHUNK", 1)
    assert error(computed(case, half_partials=True)["weight"], truth) > 1.3 * plain


def test_the_gradient_of_a_bias_is_one_sum() -> None:
    case = CASES["conv2d"]
    expected = round_to_half_(seed_of(case).float().sum([0, 2, 3]))
    assert torch.equal(computed(case, half_partials=True)["bias"], expected)


def test_a_partial_sum_that_overflows_is_clipped_where_it_is_stored() -> None:
    """60000 + 60000 - 60000: within a chunk the sum is exact; a store between clips it to 65504, or is infinite."""
    x, ones = torch.zeros(1, 130), torch.ones(130, 1)
    x[0, 0], x[0, 1], x[0, 2] = 60000.0, 60000.0, -60000.0
    assert partials.mm(x, ones).item() == 60000.0
    x[0, 2], x[0, 129] = 0.0, -60000.0
    assert partials.mm(x, ones).item() == 65504.0 - 60000.0
    assert partials.mm(x, ones, clips=False).item() == float("inf")


@pytest.mark.parametrize("shapes", [((3, 0), (0, 2)), ((0, 70), (70, 2)), ((3, 70), (70, 0))])
def test_empty_products_are_what_they_are_in_pytorch(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    assert torch.equal(partials.mm(a, b), torch.mm(a, b))


@pytest.mark.parametrize(
    ("contract", "shape"), [(partials.addmm, (4, 4)), (partials.baddbmm, (2, 4, 4))], ids=["addmm", "baddbmm"]
)
def test_a_bias_with_the_factor_zero_does_not_count(contract: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    # PyTorch's documentation: if beta is 0, the input is ignored, and nan and inf in it are not propagated.
    a, b = torch.ones(shape), torch.ones(shape)
    assert contract(torch.full(shape, float("nan")), a, b, beta=0, alpha=0.5).eq(2.0).all()


def test_float32_contractions_are_left_alone() -> None:
    case = CASES["linear"]
    graph = traced(Op(case, torch.float32))
    products: set[Callable[..., object]] = {aten.mm.default, aten.addmm.default}
    kept = [n.target for n in build(graph, Arithmetic(half_partials=True)).module.graph.nodes if n.target in products]
    assert kept == [n.target for n in ops_of(graph) if n.target in products]
    assert len(kept) == 3
