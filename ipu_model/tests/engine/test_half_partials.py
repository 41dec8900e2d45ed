"""Half partials (`Options.Precision.setPartialsType`): rounding within a reduction, an approximation.

A reduction of K terms stores K / CHUNK partial sums. If the rounding errors are independent, each of relative size
2^-12.5 or so of the running total, their sum grows with the square root of the number of stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from half_support import Case, Run, module_of, normal, on_grid
from half_table import CONTRACTIONS
from torch import Tensor
from tracing_support import ops_of, traced

from ipu_model.compute import partials
from ipu_model.compute.half_ops import overloads
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import round_to_half_


def computed(case: Case, *, half_partials: bool = True) -> dict[str, Tensor]:
    """Return output and gradients of `case` in half precision, as containers."""
    return Run(module_of(case), half_partials=half_partials).results


def exact(case: Case) -> dict[str, Tensor]:
    module = module_of(case, torch.float64)
    weights, output = dict(module.named_parameters()), module()
    gradients = torch.autograd.grad(output, list(weights.values()), Run(module_of(case)).seed.double())
    return {"output 0": output.detach(), **{f"gradient of {name}": g for name, g in zip(weights, gradients)}}


def error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square error relative to the root mean square of the expected values."""
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_results_are_rounded_partial_sums_of_the_right_ones(name: str) -> None:
    """At most 8 stores here (512 terms): 8 independent errors of up to 2^-11 of a total, and a final one."""
    results, truth = computed(CONTRACTIONS[name]), exact(CONTRACTIONS[name])
    for key, tensor in results.items():
        assert on_grid(tensor), key
        assert tensor.shape == truth[key].shape
        assert error(tensor, truth[key]) < 9**0.5 * 2.0**-11, key


@pytest.mark.parametrize("name", ["mm", "bmm", "conv2d", "conv2d grouped", "conv_transpose2d"])
def test_more_stores_mean_more_error_growing_like_their_square_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, truth = CONTRACTIONS[name], exact(CONTRACTIONS[name])["output 0"]
    single = error(computed(case, half_partials=False)["output 0"], truth)
    assert error(computed(case)["output 0"], truth) > 1.3 * single
    errors = []
    for chunk in (512, 64, 16, 4):
        monkeypatch.setattr(partials, "CHUNK", chunk)
        errors.append(error(computed(case)["output 0"], truth))
    assert errors == sorted(errors)
    assert 1.3 < errors[3] / errors[2] < 3.0, "4 times the stores: about twice the error"


def test_a_reduction_of_one_chunk_is_not_changed() -> None:
    case = Case(torch.mm, normal(8, partials.CHUNK), normal(partials.CHUNK, 24))
    assert torch.equal(computed(case)["output 0"], computed(case, half_partials=False)["output 0"])


def test_gradients_of_weights_store_partials_too_but_that_of_a_bias_is_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 samples of 2x2 positions: with 8 channels times 9 taps a chunk, a store after 18 samples."""
    case = Case(F.conv2d, normal(64, 8, 4, 4), normal(8, 8, 3, 3, scale=0.2), normal(8))
    truth = exact(case)["gradient of w1"]
    plain = error(computed(case)["gradient of w1"], truth)
    monkeypatch.setattr(partials, "CHUNK", 1)
    run = Run(module_of(case), half_partials=True)
    assert error(run.results["gradient of w1"], truth) > 1.3 * plain
    assert torch.equal(run.results["gradient of w2"], round_to_half_(run.seed.float().sum([0, 2, 3])))


def test_a_partial_sum_that_overflows_is_clipped_where_it_is_stored() -> None:
    """60000 + 60000 - 60000: within a chunk the sum is exact; a store between clips it to 65504, or is infinite."""
    x, ones = torch.zeros(1, 130), torch.ones(130, 1)
    x[0, :3] = torch.tensor([60000.0, 60000.0, -60000.0])
    assert partials.mm(x, ones).item() == 60000.0
    x[0, 2], x[0, 129] = 0.0, -60000.0
    assert partials.mm(x, ones).item() == 65504.0 - 60000.0
    assert partials.mm(x, ones, clips=False).item() == math.inf


@pytest.mark.parametrize("shapes", [((3, 0), (0, 2)), ((0, 70), (70, 2)), ((3, 70), (70, 0))])
def test_empty_products_are_what_they_are_in_pytorch(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    assert torch.equal(partials.mm(a, b), torch.mm(a, b))


@pytest.mark.parametrize(("contract", "shape"), [(partials.addmm, (4, 4)), (partials.baddbmm, (2, 4, 4))])
def test_a_bias_with_the_factor_zero_does_not_count(contract: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    # PyTorch's documentation: if beta is 0, the input is ignored, and nan and inf in it are not propagated.
    ones = torch.ones(shape)
    assert contract(torch.full(shape, math.nan), ones, ones, beta=0, alpha=0.5).eq(2.0).all()


def test_float32_contractions_are_left_alone() -> None:
    graph, products = traced(module_of(CONTRACTIONS["linear"], torch.float32)), overloads("mm addmm")
    kept = [n.target for n in build(graph, Arithmetic(half_partials=True)).module.graph.nodes if n.target in products]
    assert kept == [n.target for n in ops_of(graph) if n.target in products]
    assert len(kept) == 3
