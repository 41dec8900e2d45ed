"""Which value a training model is differentiated from, and how (executor reference, sections 8 and 10).

The oracle is plain PyTorch: at rate 1 a step moves the weight by its gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, quiet, scale, training
from torch import Tensor, nn
from zoo_support import numbers

import poptorch

REDUCTIONS = ("sum", "mean", "none")
X, REAL = numbers(4, 6), numbers(4, 6, seed=1)
CLASSES, SIGNS = torch.tensor([1, 5, 0, 3]), REAL.sign()
SHARES, CHANCES = REAL.softmax(-1), REAL.sigmoid()


def layered(function: Callable[..., Any]) -> Any:
    torch.manual_seed(1)
    return Module(lambda m, x, *rest: m.inner(m.linear(x), *rest), linear=nn.Linear(6, 6), inner=function)


def check(function: Callable[..., Any], *inputs: Tensor, plain: Callable[..., Tensor] | None = None) -> Any:
    """Compare the gradient with that of the sum of `plain`, by default the same function; return the outputs."""
    model, reference = layered(function), layered(plain or function)
    before = model.linear.weight.detach().clone()
    executor = training(model, lr=1.0)
    results = executor(*inputs)
    reference(*(t.long() if t.dtype is torch.int32 else t for t in inputs)).sum().backward()
    moved = before - model.linear.weight.detach()
    torch.testing.assert_close(moved, reference.linear.weight.grad, atol=1e-6, rtol=1e-5)
    return results


def logarithms(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


# Every loss of torch.nn that PopTorch compiles, and what it takes; some take another form of the layer's outputs.
LOSSES: list[tuple[Any, tuple[Tensor, ...], Callable[[Tensor], Tensor]]] = [
    *[
        (loss, targets, lambda x: x)
        for loss, *targets in (
            (nn.L1Loss(), REAL),
            (nn.MSELoss(), REAL),
            (nn.MSELoss(reduction="sum"), REAL),
            (nn.MSELoss(reduction="none"), REAL),  # its gradient equals that of the sum
            (nn.SmoothL1Loss(beta=0.5), REAL),
            (nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES),
            (nn.CrossEntropyLoss(), SHARES),
            (nn.CrossEntropyLoss(), CLASSES.int()),
            (nn.BCEWithLogitsLoss(), CHANCES),
            (nn.BCEWithLogitsLoss(pos_weight=torch.arange(6.0)), CHANCES),
            (nn.PoissonNLLLoss(full=True), 3 * CHANCES),
            (nn.SoftMarginLoss(), SIGNS),
            (nn.HingeEmbeddingLoss(), SIGNS),
            (nn.MarginRankingLoss(), REAL, SIGNS),
            (nn.MultiLabelSoftMarginLoss(), (CHANCES > 0.5).float()),
            (nn.CosineEmbeddingLoss(), REAL, SIGNS[:, 0]),
            (nn.TripletMarginLoss(), REAL, REAL.flip(0)),
            (nn.TripletMarginWithDistanceLoss(), REAL, REAL.flip(0)),
        )
    ],
    (nn.CrossEntropyLoss(ignore_index=5), (CLASSES[:, None],), lambda x: x[..., None]),  # as of every pixel
    (nn.NLLLoss(), (CLASSES,), logarithms),
    (nn.BCELoss(), (CHANCES,), torch.sigmoid),
    (nn.KLDivLoss(reduction="batchmean"), (SHARES,), logarithms),
    (nn.KLDivLoss(log_target=True, reduction="sum"), (SHARES.log(),), logarithms),
    (
        nn.CTCLoss(),
        (torch.tensor([[1, 2], [3, 3]]), torch.tensor([4, 4]), torch.tensor([2, 1])),
        lambda x: logarithms(x).unsqueeze(1).expand(-1, 2, -1),
    ),
]


# PopTorch knows these as ordinary ops.
UNMARKED = ("TripletMarginWithDistance",)


@pytest.mark.parametrize("number", range(len(LOSSES)), ids=lambda number: f"{number} {LOSSES[number][0]}")
def test_each_one_marks_itself_and_has_pytorchs_value_and_gradient(number: int) -> None:
    loss, targets, prepare = LOSSES[number]

    def value(model: Any, out: Tensor, *rest: Tensor) -> Tensor:
        value = model.loss(prepare(out), *rest)
        marked = type(loss).__name__[: -len("Loss")] not in UNMARKED
        return value if marked else poptorch.identity_loss(value, "none")

    function = Module(value, loss=loss)
    result = check(function, X, *targets)
    with torch.no_grad():
        expected = layered(function)(X, *(t.long() if t.dtype is torch.int32 else t for t in targets))
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


class TestIdentityLoss:
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_training_differentiates_from_ones_at_the_mark(self, reduction: str) -> None:
        result = check(lambda o: poptorch.identity_loss(o, reduction), X)
        with torch.no_grad():
            torch.testing.assert_close(result, layered(lambda o: poptorch.identity_loss(o, reduction))(X))
        x = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
        result = poptorch.identity_loss(x, reduction=reduction)
        assert torch.equal(result, {"sum": x.sum(), "mean": x.mean(), "none": x.clone()}[reduction])
        result.add_(1)
        assert x.sum() == 3.5


def mse(out: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(out, target)


class TestTheFinalLoss:
    """What is none is refused: `test_mistakes.py`."""

    @pytest.mark.parametrize("returns", [lambda out: out, lambda out: None], ids=["another output", "nothing"])
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_a_loss_need_not_be_returned(self, returns: Any, reduction: str) -> None:
        def keeps(out: Tensor, target: Tensor) -> Any:
            poptorch.identity_loss((out - target) ** 2, reduction)
            return returns(out)

        result = check(keeps, X, REAL, plain=lambda o, t: (o - t) ** 2)
        assert (result is None) == (returns(0) is None)

    def test_the_last_mark_that_is_returned_counts(self) -> None:
        def chained(out: Tensor, target: Tensor) -> Any:
            inner = F.mse_loss(out, target)
            return inner, poptorch.identity_loss(3 * inner, "none")

        check(chained, X, REAL, plain=lambda o, t: 3 * mse(o, t))
        check(lambda o, t: (mse(o, t), F.l1_loss(o, t))[1], X, REAL, plain=F.l1_loss)

    def test_what_follows_the_mark_scales_the_returned_value_but_not_the_gradient(self) -> None:
        """Its place in the outputs is irrelevant, and other outputs get no gradient."""
        scaled, plain = check(lambda o, t: 5 * mse(o, t), X, REAL, plain=mse), check(mse, X, REAL)
        torch.testing.assert_close(scaled, 5 * plain)
        out = check(lambda o, t: {"more": [o * 100, (mse(o, t), o.sum())]}, X, REAL, plain=mse)
        assert out["more"][0].shape == (4, 6)


def test_frozen_and_unused_parameters_stay() -> None:
    model = layered(mse)
    model.linear.bias.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(2))
    before = copy.deepcopy(model.state_dict())
    executor = training(model, weight_decay=0.5)
    executor(X, REAL)
    assert torch.equal(model.linear.bias, before["linear.bias"])
    assert not torch.equal(model.linear.weight, before["linear.weight"])
    assert model.unused.tolist() == [1, 1]


class TestReduction:
    @pytest.mark.parametrize(
        ("a", "r", "kind", "moved"),
        [(1, 1, "Mean", 2), (4, 1, "Mean", 2), (4, 1, "Sum", 8), (2, 2, "Mean", 2), (2, 2, "Sum", 8)],
    )
    def test_gradients_are_averaged_or_summed(self, a: int, r: int, kind: str, moved: float) -> None:
        reduction = poptorch.ReductionType[kind]
        options = quiet(replicationFactor=r, accumulation=a, accumulationAndReplicationReductionType=reduction)
        model, _, executor = scale(options=options, lr=1.0)
        executor(torch.full((a * r,), 2.0))
        assert model.weight.item() == 1 - moved

    @pytest.mark.parametrize("kind", [poptorch.MeanReductionStrategy.Running, poptorch.MeanReductionStrategy.Post])
    def test_the_mean_strategy_changes_rounding_only(self, kind: poptorch.MeanReductionStrategy) -> None:
        options = quiet(accumulation=3, setMeanAccumulationAndReplicationReductionStrategy=kind)
        model, _, executor = scale(options=options, lr=1.0)
        executor(torch.tensor([1.0, 2.0, 6.0]))
        assert model.weight.item() == pytest.approx(1 - 3)
