"""How one host batch becomes micro-batches (executor reference, section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch


def shows(function: Any) -> nn.Module:
    """Returns `function(weight, x)`; the gradient of its weight is the sum of x."""
    weight = nn.Parameter(torch.zeros(1))
    return Module(lambda m, x: (function(m.weight, x), poptorch.identity_loss(m.weight * x, "sum")), weight=weight)


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y


ALL = {"outputMode": poptorch.OutputMode.All}


class TestSplitting:
    """Section 6: one host batch is laid out as [D, A, R, B, ...]."""

    @given(d=st.integers(1, 3), a=st.integers(1, 3), r=st.integers(1, 3), b=st.integers(1, 2))
    def test_every_micro_batch_is_the_right_rows(self, d: int, a: int, r: int, b: int) -> None:
        options = quiet(deviceIterations=d, replicationFactor=r, accumulation=a, **ALL)
        x = torch.arange(float(d * a * r * b))
        sums = training(shows(lambda weight, x: x.sum(0, keepdim=True)), options)(x)[0]
        assert sums.tolist() == x.reshape(d * a * r, b).sum(1).tolist()

    def test_the_worked_example_updates_where_the_reference_says(self) -> None:
        options = quiet(deviceIterations=2, replicationFactor=2, accumulation=2, **ALL)
        executor = training(shows(lambda weight, x: weight + 0 * x), options, lr=1.0)
        weights = executor(torch.arange(8.0))[0].tolist()
        # Rows 0 to 3 see the start, rows 4 to 7 the first update: minus the mean of 0, 1, 2, 3.
        assert weights == [0, 0, 0, 0, -1.5, -1.5, -1.5, -1.5]
        assert executor.model.weight.item() == -1.5 - 5.5

    def test_rows_that_do_not_divide_name_all_four_counts(self) -> None:
        with pytest.raises(AssertionError, match="Invalid batch dimension") as refusal:
            inference(Pair(), quiet(deviceIterations=2, replicationFactor=3))(torch.ones(12), torch.ones(8, 3))
        counts = ["deviceIterations(2)", "replicationFactor(3)", "inputReplicaGrouping(1)", "gradientAccumulation(1)"]
        for words in ("[8, 3]", *counts, "= 6", "6 and 12"):
            assert words in str(refusal.value)

    def test_each_input_has_its_own_micro_batch_size(self) -> None:
        x, y = inference(Pair(), quiet(deviceIterations=2))(torch.arange(4.0), torch.arange(12.0).reshape(6, 2))
        assert (x.shape, y.shape) == ((4,), (6, 2))

    @pytest.mark.parametrize(("kind", "rows"), [("Consecutive", [0, 0, 1, 1]), ("Orthogonal", [0, 1, 0, 1])])
    def test_replica_groups_share_an_input(self, kind: str, rows: list[int]) -> None:
        options = quiet(replicationFactor=4).inputReplicaGrouping(2, poptorch.CommGroupType[kind])
        assert inference(nn.Identity(), options)(torch.tensor([0.0, 1.0])).tolist() == rows

    @pytest.mark.parametrize(
        ("setting", "name"),
        [
            ("deviceIterations", "deviceIterations"),
            ("replicationFactor", "replicationFactor"),
            ("accumulation", "Training.gradientAccumulation"),
        ],
    )
    def test_counts_below_one_are_refused_by_name(self, setting: str, name: str) -> None:
        options = quiet(**{setting: 0})
        with pytest.raises(poptorch.Error, match=rf"poptorch.Options\(\).{name} must be at least 1, not 0"):
            training(shows(lambda weight, x: x), options)(torch.ones(1))


def test_synthetic_data_checks_inputs_but_does_not_use_them() -> None:
    executor = inference(nn.Identity(), quiet(enableSyntheticData=True))
    x = torch.full((1000,), 100.0)
    before = torch.get_rng_state()
    out = executor(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert out.abs().max() < 50, "normal numbers"
    assert out.std() == pytest.approx(1, rel=0.2)
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        executor(x[:5])
    whole = inference(nn.Identity(), quiet(enableSyntheticData=True))(torch.ones(3, dtype=torch.int32))
    assert whole.tolist() == [0, 0, 0]
