"""Support for programs of many families: run one wrapped and in plain PyTorch, compare, profile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from executor_support import Module
from fuzz.plain import plain_kernels
from modelling_support import quiet
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ipu_model
import poptorch

TOLERANCE = 2e-4


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return normal random numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Squared(nn.Module):
    """A network with the mean square of everything it returns as the loss, as programs write an own loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.network(*args, **kwargs)
        found = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
        return outputs, poptorch.identity_loss(sum((t * t).mean() for t in found), reduction="none")


class Function(nn.Module):
    """A function of tensors whose first argument is scaled by a parameter, so that gradients flow through it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, first: Tensor, *others: Any) -> Any:
        return self.function(first * self.scale, *others)


Made = Module


def check_training(network: nn.Module, *args: Any, rate: float = 0.05, fallbacks: tuple[str, ...] = (),
                   **kwargs: Any) -> None:  # fmt: skip
    """Take two steps wrapped and two in plain PyTorch: outputs, loss and weights agree; the profile is there.

    `fallbacks` are the ops without a formula of cost that are expected, such as "aten.lgamma".
    """
    model, reference = (Squared(copy.deepcopy(network)).train() for _ in range(2))
    wrapped = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=rate))
    optimiser = torch.optim.SGD(reference.parameters(), lr=rate)
    for _ in range(2):
        outputs = wrapped(*args, **kwargs)
        optimiser.zero_grad()
        expected = reference(*args, **kwargs)
        expected[1].backward()
        optimiser.step()
        agree(outputs, expected)
    wrapped.copyWeightsToHost()
    agree(weights(model), weights(reference))
    assert names(ipu_model.profile(wrapped)) == set(fallbacks)


def check_inference(network: nn.Module, *args: Any, fallbacks: tuple[str, ...] = (), **kwargs: Any) -> None:
    """Run `network` wrapped and in plain PyTorch: outputs agree; the profile is there."""
    network = network.eval()
    wrapped = poptorch.inferenceModel(copy.deepcopy(network), quiet())
    outputs = wrapped(*args, **kwargs)
    with torch.no_grad(), plain_kernels():
        agree(outputs, network(*args, **kwargs))
    assert names(ipu_model.profile(wrapped)) == set(fallbacks)


def names(profile: Any) -> set[str]:
    """Return the ops that a profile has no formula for, without their overloads."""
    return {op.target.rpartition(".")[0] for op in profile.fallbacks}


def weights(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the floating-point tensors of a module: whole numbers are constants of the device."""
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


def agree(found: Any, expected: Any) -> None:
    """Compare the tensors of two structures; 64-bit whole numbers come back from the device as 32-bit ones."""
    left, right = tree_leaves(found), tree_leaves(expected)
    assert len(left) == len(right)
    for one, other in zip(left, right):
        if not isinstance(other, Tensor):
            assert one == other
            continue
        other = other.detach().int() if other.dtype == torch.int64 else other.detach()
        assert one.numel() == other.numel()
        torch.testing.assert_close(one.reshape(other.shape), other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
