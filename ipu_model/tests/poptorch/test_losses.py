"""Losses: `identity_loss` (execution reference, section 6) and every loss of torch.nn, with each reduction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_models import quiet_options
from torch import Tensor, nn
from zoo_support import check_training, numbers

import poptorch

REDUCTIONS = ("sum", "mean", "none")


class Product(nn.Module):
    """Returns the reduced loss of `weight * x`."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.reduction = reduction

    def forward(self, x: Tensor) -> Tensor:
        return poptorch.identity_loss(self.weight * x, self.reduction)


def plain_reduction(x: Tensor, reduction: str) -> Tensor:
    return {"sum": x.sum, "mean": x.mean, "none": x.clone}[reduction]()


def trained(model: Product, x: Tensor) -> Tensor:
    """Train one step at rate 1: the weight loses its gradient. Returns what the call returned."""
    executor = poptorch.trainingModel(model, quiet_options(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    result = executor(x)
    executor.destroy()
    return result


class TestIdentityLoss:
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_on_the_cpu_it_is_the_plain_reduction(self, reduction: str) -> None:
        x = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
        assert torch.equal(poptorch.identity_loss(x, reduction=reduction), plain_reduction(x, reduction))

    def test_without_reduction_it_returns_a_copy(self) -> None:
        x = torch.ones(3)
        poptorch.identity_loss(x, "none").add_(1)
        assert torch.equal(x, torch.ones(3))

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_training_differentiates_from_ones_at_the_mark(self, reduction: str) -> None:
        x = torch.tensor([[1.0, 5.0, -2.0], [2.0, 0.0, 1.0]])
        plain = Product(reduction)
        loss = plain_reduction(plain.weight * x, reduction)
        loss.backward(torch.ones_like(loss))
        assert plain.weight.grad is not None
        model = Product(reduction)
        assert torch.allclose(trained(model, x), loss.detach())
        assert torch.allclose(model.weight, plain.weight - plain.weight.grad)


# Every loss of torch.nn: its value and gradient.

OUTPUTS, OTHERS = numbers(4, 6), numbers(4, 6, seed=1)
CLASSES, SIGNS = torch.tensor([1, 5, 0, 3]), OTHERS.sign()
SHARES, CHANCES = OTHERS.softmax(-1), OTHERS.sigmoid()


class Lossy(nn.Module):
    """A layer, something that makes its outputs what the loss takes, and the loss."""

    def __init__(self, loss: nn.Module, prepare: Any) -> None:
        super().__init__()
        self.layer, self.loss, self.prepare = nn.Linear(6, 6), loss, prepare

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        return self.loss(self.prepare(self.layer(x)), *targets)


def same(x: Tensor) -> Tensor:
    return x


def logarithms(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


def sequence(x: Tensor) -> Tensor:
    return logarithms(x).unsqueeze(1).expand(-1, 2, -1)


# Loss, its options, what prepares its input, its other arguments.
LOSSES: list[tuple[Any, dict[str, Any], Any, tuple[Tensor, ...]]] = [
    (nn.L1Loss, {}, same, (OTHERS,)),
    (nn.MSELoss, {}, same, (OTHERS,)),
    (nn.SmoothL1Loss, {"beta": 0.5}, same, (OTHERS,)),
    (nn.HuberLoss, {"delta": 0.5}, same, (OTHERS,)),
    (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, same, (CLASSES,)),
    (nn.CrossEntropyLoss, {"ignore_index": 5}, same, (CLASSES,)),
    (nn.CrossEntropyLoss, {}, same, (SHARES,)),
    (nn.NLLLoss, {}, logarithms, (CLASSES,)),
    (nn.BCELoss, {}, torch.sigmoid, (CHANCES,)),
    (nn.BCEWithLogitsLoss, {}, same, (CHANCES,)),
    (nn.BCEWithLogitsLoss, {"pos_weight": torch.arange(6.0)}, same, (CHANCES,)),
    (nn.KLDivLoss, {"reduction": "batchmean"}, logarithms, (SHARES,)),
    (nn.KLDivLoss, {"log_target": True, "reduction": "sum"}, logarithms, (SHARES.log(),)),
    (nn.PoissonNLLLoss, {"full": True}, same, (3 * CHANCES,)),
    (nn.GaussianNLLLoss, {"full": True}, same, (OTHERS, CHANCES)),
    (nn.SoftMarginLoss, {}, same, (SIGNS,)),
    (nn.HingeEmbeddingLoss, {}, same, (SIGNS,)),
    (nn.MarginRankingLoss, {}, same, (OTHERS, SIGNS)),
    (nn.MultiLabelSoftMarginLoss, {}, same, ((CHANCES > 0.5).float(),)),
    (nn.MultiMarginLoss, {}, same, (CLASSES,)),
    (nn.CosineEmbeddingLoss, {}, same, (OTHERS, SIGNS[:, 0])),
    (nn.TripletMarginLoss, {}, same, (OTHERS, OTHERS.flip(0))),
    (nn.TripletMarginWithDistanceLoss, {}, same, (OTHERS, OTHERS.flip(0))),
    (nn.CTCLoss, {}, sequence, (torch.tensor([[1, 2], [3, 3]]), torch.tensor([4, 4]), torch.tensor([2, 1]))),
]  # fmt: skip
IDS = [f"{loss.__name__} {' '.join(options)}" for loss, options, _, _ in LOSSES]


@pytest.mark.parametrize(("loss", "options", "prepare", "targets"), LOSSES, ids=IDS)
def test_each_loss_is_that_of_pytorch(loss: Any, options: dict[str, Any], prepare: Any, targets: Any) -> None:
    check_training(Lossy(loss(**options), prepare), OUTPUTS, *targets)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize(("loss", "options", "prepare", "targets"), LOSSES[::9], ids=IDS[::9])
def test_losses_with_other_reductions_are_those_of_pytorch(
    loss: Any, options: Any, prepare: Any, targets: Any, reduction: str
) -> None:
    check_training(Lossy(loss(**{**options, "reduction": reduction}), prepare), OUTPUTS, *targets)


def test_margins_of_several_labels() -> None:
    targets = torch.tensor([[1, 2, -1, 0, 0, 0]] * 4)
    check_training(Lossy(nn.MultiLabelMarginLoss(), same), OUTPUTS, targets)


@pytest.mark.parametrize(("variance", "reduction"), [
    (CHANCES, "mean"), (CHANCES[:, 0], "sum"), (CHANCES[:, :1], "none"), (0.5, "mean"),
], ids=["each", "a row's", "a row's, kept", "a number"])  # fmt: skip
def test_a_gaussian_with_a_variance_of_any_shape(variance: Any, reduction: str) -> None:
    """The variance is learnt: its lower limit does not stop its gradient."""

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.variance = nn.Parameter(variance.clone()) if isinstance(variance, Tensor) else variance

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.gaussian_nll_loss(self.layer(x), y, self.variance, eps=0.4, reduction=reduction)

    check_training(Gaussian(), OUTPUTS, OTHERS, rate=1e-3)


def test_losses_of_every_pixel_with_a_class_to_ignore() -> None:
    classes = torch.arange(32).reshape(2, 4, 4) % 5
    check_training(Lossy2d(), numbers(2, 3, 4, 4), classes.where(classes > 0, 255))


class Lossy2d(nn.Module):
    """A segmentation: classes of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 1)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.layer(x), classes, ignore_index=255)
