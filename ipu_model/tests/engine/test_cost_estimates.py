"""Ops without a vertex of their own: rounds that depend on one another, as many as the textbook's algorithm has."""

from __future__ import annotations

import pytest
import torch
from cost_support import GC200, costed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ipu_model.predict.costs import OpCost
from ipu_model.predict.device import Element
from ipu_model.predict.ops.estimates import Rounds, estimated

FLOAT = Element.FLOAT


class Calling(nn.Module):
    """Calls a function of its scaled input."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


def cost_of(name: str, function, x: Tensor) -> OpCost:
    found = costed(Calling(function), x)
    (op,) = [op for op in found.ops if op.target == f"aten.{name}"]
    assert op.family == "estimated"
    return op


@pytest.mark.parametrize(
    ("name", "function", "rounds"),
    [
        ("_linalg_det.default", torch.linalg.det, {8: 8, 32: 32}),  # one for each column
        ("linalg_inv_ex.default", torch.linalg.inv, {8: 24, 32: 96}),  # and two to solve
        ("_linalg_eigh.default", torch.linalg.eigvalsh, {8: 70, 32: 310}),  # ten sweeps of n - 1
        ("_fft_r2c.default", lambda x: torch.fft.rfft(x).real, {8: 3, 32: 5}),  # log2(n)
        ("searchsorted.Tensor", lambda x: torch.searchsorted(x.detach(), x.detach()) * x, {8: 4, 32: 6}),
    ],
    ids=["det", "inverse", "eigenvalues", "fft", "search"],
)
def test_longer_rows_take_as_many_rounds_as_the_algorithm(name: str, function, rounds: dict[int, int]) -> None:
    assert {n: cost_of(name, function, torch.eye(n)).work.repeats for n in rounds} == rounds


@given(st.integers(1, 50), st.integers(1, 10**6))
def test_rounds_follow_one_another_and_more_elements_never_take_fewer_cycles(count: int, elements: int) -> None:
    def cost(count: int, elements: int, received: str = "all"):
        return estimated(GC200, Rounds(count, elements, ("add", "add"), received), FLOAT, elements)

    assert cost(count, elements).cycles == cost(1, elements).cycles.times(count)
    assert GC200.total(cost(1, elements + 1000).cycles) >= GC200.total(cost(1, elements).cycles)
    assert GC200.total(cost(1, elements, "row and column").cycles) <= GC200.total(cost(1, elements).cycles)


def distances(rows: int, others: int, features: int) -> OpCost:
    def apart(x: Tensor) -> Tensor:
        return torch.cdist(x, torch.ones(others, features), compute_mode="donot_use_mm_for_euclid_dist")

    return cost_of("_cdist_forward.default", apart, torch.ones(rows, features))


def test_distances_work_on_every_feature_of_every_pair() -> None:
    """Twice the features or twice the rows to compare with: the same work in all."""
    assert distances(2000, 500, 64).work.cycles == distances(2000, 1000, 32).work.cycles
