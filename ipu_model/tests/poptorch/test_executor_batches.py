"""How one host batch becomes micro-batches (executor reference, section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import inference, quiet, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch


def identity(*names: str) -> nn.Module:
    """Return a module that returns its arguments, which have these names."""
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(names)}): return ({', '.join(names)},)", namespace)
    return type("Identity", (nn.Module,), {"forward": namespace["forward"]})()


class TestSplitting:
    """Section 6: one host batch is laid out as [D, A, R, B, ...]."""

    @given(d=st.integers(1, 3), a=st.integers(1, 3), r=st.integers(1, 3), b=st.integers(1, 2))
    def test_every_micro_batch_is_the_right_rows(self, d: int, a: int, r: int, b: int) -> None:
        class Sums(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                return x.sum(0, keepdim=True), poptorch.identity_loss(self.weight * x, "sum")

        options = quiet().deviceIterations(d).replicationFactor(r).outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(a)
        x = torch.arange(float(d * a * r * b))
        executor = training(Sums(), options)
        sums = executor(x)[0]
        assert sums.tolist() == x.reshape(d * a * r, b).sum(1).tolist()

    def test_the_worked_example_updates_where_the_reference_says(self) -> None:
        class Shows(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                return self.weight + 0 * x, poptorch.identity_loss(self.weight * x, "sum")

        options = quiet().deviceIterations(2).replicationFactor(2).outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(2)
        executor = training(Shows(), options, lr=1.0)
        weights = executor(torch.arange(8.0))[0].tolist()
        # Rows 0 to 3 see the start, rows 4 to 7 the first update: minus the mean of 0, 1, 2, 3.
        assert weights == [0, 0, 0, 0, -1.5, -1.5, -1.5, -1.5]
        assert executor.model.weight.item() == -1.5 - 5.5

    def test_rows_that_do_not_divide_name_all_four_counts(self) -> None:
        options = quiet().deviceIterations(2).replicationFactor(3)
        with pytest.raises(AssertionError, match="Invalid batch dimension") as refusal:
            inference(identity("x", "y"), options)(torch.ones(12), torch.ones(8, 3))
        for words in ("[8, 3]", "deviceIterations(2)", "replicationFactor(3)", "inputReplicaGrouping(1)",
                      "gradientAccumulation(1)", "= 6", "6 and 12"):  # fmt: skip
            assert words in str(refusal.value)

    def test_each_input_has_its_own_micro_batch_size(self) -> None:
        model = identity("x", "y")
        x, y = inference(model, quiet().deviceIterations(2))(torch.arange(4.0), torch.arange(12.0).reshape(6, 2))
        assert (x.shape, y.shape) == ((4,), (6, 2))

    @pytest.mark.parametrize(
        ("kind", "rows"),
        [
            (poptorch.CommGroupType.Consecutive, [0, 0, 1, 1]),
            (poptorch.CommGroupType.Orthogonal, [0, 1, 0, 1]),
        ],
    )
    def test_replica_groups_share_an_input(self, kind: poptorch.CommGroupType, rows: list[int]) -> None:
        options = quiet().replicationFactor(4).inputReplicaGrouping(2, kind)
        assert inference(identity("x"), options)(torch.tensor([0.0, 1.0]))[0].tolist() == rows

    @pytest.mark.parametrize("name", ["deviceIterations", "replicationFactor", "Training.gradientAccumulation"])
    def test_counts_below_one_are_refused_by_name(self, name: str) -> None:
        options = quiet()
        *path, last = name.split(".")
        getattr(getattr(options, path[0]) if path else options, last)(0)
        with pytest.raises(poptorch.Error, match=rf"poptorch.Options\(\).{name} must be at least 1, not 0"):
            training(nn.Sequential(nn.Linear(1, 1), nn.MSELoss()), options)(torch.ones(1, 1))


def test_synthetic_data_checks_inputs_but_does_not_use_them() -> None:
    executor = inference(identity("x"), quiet().enableSyntheticData(True))
    x = torch.full((1000,), 100.0)
    before = torch.get_rng_state()
    out = executor(x)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert out.abs().max() < 50, "normal numbers"
    assert out.std() == pytest.approx(1, rel=0.2)
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        executor(x[:5])
