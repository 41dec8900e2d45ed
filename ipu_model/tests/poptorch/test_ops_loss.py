"""`identity_loss` (execution reference, section 6)."""

from __future__ import annotations

import pytest
import torch
from function_models import quiet_options
from torch import Tensor, nn

import poptorch

REDUCTIONS = ("sum", "mean", "none")


class Product(nn.Module):
    """Returns the reduced loss of `weight * x`, after scaling it by `factor`."""

    def __init__(self, reduction: str, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.reduction, self.factor = reduction, factor

    def forward(self, x: Tensor) -> Tensor:
        return poptorch.identity_loss(self.weight * x, self.reduction) * self.factor


def plain_reduction(x: Tensor, reduction: str) -> Tensor:
    return {"sum": x.sum, "mean": x.mean, "none": x.clone}[reduction]()


def trained(model: Product, x: Tensor) -> Tensor:
    """Train one step at rate 1: the weight loses its gradient. Returns what the call returned."""
    executor = poptorch.trainingModel(model, quiet_options(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    result = executor(x)
    executor.destroy()
    return result


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_on_the_cpu_it_is_the_plain_reduction(reduction: str) -> None:
    x = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    assert torch.equal(poptorch.identity_loss(x, reduction=reduction), plain_reduction(x, reduction))


def test_without_reduction_it_returns_a_copy() -> None:
    x = torch.ones(3)
    poptorch.identity_loss(x, "none").add_(1)
    assert torch.equal(x, torch.ones(3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_training_differentiates_from_ones_at_the_mark(reduction: str) -> None:
    x = torch.tensor([[1.0, 5.0, -2.0], [2.0, 0.0, 1.0]])
    plain = Product(reduction)
    loss = plain_reduction(plain.weight * x, reduction)
    loss.backward(torch.ones_like(loss))
    assert plain.weight.grad is not None
    model = Product(reduction)
    assert torch.allclose(trained(model, x), loss.detach())
    assert torch.allclose(model.weight, plain.weight - plain.weight.grad)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_what_follows_the_mark_scales_the_result_but_not_the_gradient(reduction: str) -> None:
    x = torch.tensor([[1.0, 5.0, -2.0]])
    plain, scaled = Product(reduction), Product(reduction, factor=5.0)
    assert torch.allclose(trained(scaled, x), 5 * trained(plain, x))
    assert torch.equal(scaled.weight, plain.weight)


def test_it_joins_two_losses_into_the_one_that_is_differentiated() -> None:
    class TwoLosses(Product):
        def forward(self, x: Tensor) -> Tensor:
            y = self.weight * x
            both = nn.functional.mse_loss(y, x) + nn.functional.l1_loss(y, x)
            return poptorch.identity_loss(both, reduction="none")

    x = torch.tensor([[1.0, 5.0, -2.0]])
    plain = Product("none")
    y = plain.weight * x
    (nn.functional.mse_loss(y, x) + nn.functional.l1_loss(y, x)).backward()
    assert plain.weight.grad is not None
    model = TwoLosses("none")
    trained(model, x)
    assert torch.allclose(model.weight, plain.weight - plain.weight.grad)


@pytest.mark.parametrize("reduction", ["average", "Sum", "", None])
def test_another_reduction_is_refused_on_the_cpu_and_when_traced(reduction: str) -> None:
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        poptorch.identity_loss(torch.ones(2), reduction)
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        trained(Product(reduction), torch.ones(1, 3))


def test_a_list_of_losses_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"identity_loss takes a torch\.Tensor"):
        poptorch.identity_loss([torch.ones(2)], "sum")
