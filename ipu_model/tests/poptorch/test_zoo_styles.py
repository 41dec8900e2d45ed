"""Programs in less common styles: sparse layers, hooks, functions with gradients of their own, data classes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import Function, Squared, agree, check_inference, check_training

import poptorch


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, IMAGES = numbers(3, 4), numbers(2, 3, 5, 5)
ROWS = torch.tensor([[1, 5, 0], [3, 3, 9]])


class Adaptive(nn.Module):
    """A classifier of ten classes, of which the rare ones share projections."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3, 6], div_value=2.0, head_bias=True)

    def forward(self, x: Tensor, classes: Tensor | None = None) -> Any:
        x = self.layer(x)
        return (x, self.softmax.predict(x)) if classes is None else self.softmax(x, classes)


class Warp(nn.Module):
    """Images moved by a flow that a convolution finds: the gradient reaches the grid, not the images."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        ticks = torch.linspace(-1, 1, x.shape[-1])
        grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), dim=-1)
        return F.grid_sample(x, grid + 0.1 * self.flow(x).permute(0, 2, 3, 1), align_corners=True)


class InParts(torch.autograd.Function):
    """A function that writes its result in parts and has a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        result[:, 0] = x[:, 0] * 2
        result[:, 1:].copy_(x[:, 1:])
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Hooked(nn.Module):
    """A weight whose gradient is doubled by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.weight.register_hook(lambda gradient: gradient * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Anchored(nn.Module):
    """Plain attributes that are arrays of NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.anchors, self.width = nn.Linear(4, 4), np.arange(4.0), np.int64(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).reshape(-1, self.width) * torch.tensor(self.anchors, dtype=x.dtype)


MODELS: dict[str, Any] = {
    "sparse embedding": lambda: (nn.Embedding(10, 4, sparse=True), ROWS),
    "sparse bags": lambda: (nn.EmbeddingBag(10, 4, mode="sum", sparse=True), ROWS),
    "adaptive softmax": lambda: (Adaptive(), A, torch.tensor([9, 0, 4])),
    "adaptive softmax of one row": lambda: (Adaptive(), A[0], torch.tensor(7)),
    "the best classes of an adaptive softmax": lambda: (Adaptive(), A),
    "flow": lambda: (Warp(), IMAGES),
    "a function that writes in parts": lambda: (nn.Sequential(nn.Linear(4, 4), Function(InParts.apply)), A),
    "arrays": lambda: (Anchored(), A),
    "inverse hyperbolic": lambda: (
        Function(lambda x: (x.asinh(), (x.abs() + 1.1).acosh(), (x.tanh() * 0.9).atanh(), torch.fmax(x, -x))), A),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_training_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_training(*MODELS[name](), rate=1e-2)


@pytest.mark.parametrize("name", ["adaptive softmax", "the best classes of an adaptive softmax", "flow"])
def test_inference_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_inference(*MODELS[name]())


def test_a_gradient_hook_of_a_weight_runs() -> None:
    """Written out: a copy of a module would leave the hooks of its weights behind."""
    torch.manual_seed(0)
    model = Squared(Hooked())
    reference = Squared(Hooked())
    reference.load_state_dict(model.state_dict())
    wrapped = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.1))
    wrapped(A)
    reference(A)[1].backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    wrapped.copyWeightsToHost()
    agree(model.state_dict(), reference.state_dict())


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_margin_losses_in_half_precision_are_those_of_float32_rounded_once(loss: Any) -> None:
    targets = torch.tensor([1, 3, 0]) if loss is F.multi_margin_loss else torch.tensor([[1, 2, -1, 0]] * 3)
    scores = A.half()

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(scores.clone())

        def forward(self, targets: Tensor) -> Tensor:
            return poptorch.identity_loss(loss(self.scores, targets), reduction="none")

    model = Scored()
    wrapped = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    found = wrapped(targets)
    plain = scores.float().requires_grad_()
    expected = loss(plain, targets)
    expected.backward()
    assert torch.equal(found, expected.detach().half())
    torch.testing.assert_close(model.scores.detach(), (scores.float() - plain.grad).half(), rtol=1e-3, atol=1e-3)


@dataclass
class Batch:
    images: Tensor
    scale: Tensor
    times: int = 2


@dataclass(frozen=True)
class Found:
    scores: Tensor
    missing: Tensor | None = None
    others: dict[str, Any] | None = None


class OfClasses(nn.Module):
    """Takes and returns instances of data classes, one of them inside a dict of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: Batch) -> Found:
        scores = self.layer(batch.images) * batch.scale * batch.times
        return Found(scores, None, {"shifted": Found(scores + 1)})


def test_data_classes_go_in_and_come_out() -> None:
    model, batch = OfClasses(), Batch(A, numbers(3, 2))
    found, expected = poptorch.inferenceModel(copy.deepcopy(model), quiet())(batch), model(batch)
    assert type(found) is Found
    assert found.missing is None
    agree([found.scores, found.others["shifted"].scores], [expected.scores, expected.others["shifted"].scores])


class Holder:
    """An object that is no container."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "an object": (lambda: Function(Holder), "inside an object of type Holder.*registerCustomArgParser"),
    "a distribution": (lambda: Function(lambda x: torch.distributions.Normal(x, 1.0)), "an object of type Normal"),
    "a set": (lambda: Function(lambda x: {x}), "an object of type set"),
    "a generator": (
        lambda: Function(lambda x: x + torch.randn(4, generator=torch.Generator())), r"torch\.Generator.*randomSeed"),
    "a lazy module": (lambda: nn.Sequential(nn.LazyLinear(3)), r"'0\.weight' is not initialised: call forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_device_cannot_take_is_refused_by_name(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model(), quiet())(A)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_scripted_part_is_refused_with_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), A))
    with pytest.raises(poptorch.Error, match=r"scripted module .*'1' is one"):
        poptorch.inferenceModel(model, quiet())
