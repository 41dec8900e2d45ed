"""The oracle for functions and networks of many families is plain PyTorch; every op of theirs has a formula of cost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from executor_support import Module, inference, training
from fuzz.trial import plain_kernels
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ipu_model
import poptorch

TOLERANCE = 2e-4


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scaled(function: Callable[..., Any]) -> Module:
    """A function whose first argument is scaled by a parameter, so that gradients flow through it."""
    return Module(
        lambda model, first, *others: function(first * model.scale, *others), scale=nn.Parameter(torch.ones(1))
    )


def squared(network: nn.Module) -> Module:
    """A network with the mean square of everything that it returns as the loss."""

    def forward(model: Any, *args: Any) -> Any:
        outputs = model.network(*args)
        floats = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
        return outputs, poptorch.identity_loss(sum((t * t).mean() for t in floats), reduction="none")

    return Module(forward, network=network)


def check_training(network: nn.Module, *args: Any, rate: float = 0.05, has_formulas: bool = True) -> None:
    """Take two steps wrapped and two in plain PyTorch: both agree, and all ops have formulas of cost if they should."""
    model, reference = (squared(copy.deepcopy(network)).train() for _ in range(2))
    wrapped = training(model, lr=rate)
    optimiser = torch.optim.SGD(reference.parameters(), lr=rate)
    for _ in range(2):
        outputs = wrapped(*args)
        optimiser.zero_grad()
        expected = reference(*args)
        expected[1].backward()
        optimiser.step()
        agree(outputs, expected)
    agree(weights(model), weights(reference))
    profile = ipu_model.profile(wrapped)
    assert not (has_formulas and without_formula(profile))


def check_inference(network: nn.Module, *args: Any) -> None:
    network = network.eval()
    wrapped = inference(copy.deepcopy(network))
    outputs = wrapped(*args)
    with torch.no_grad(), plain_kernels():
        agree(outputs, network(*args))
    assert without_formula(ipu_model.profile(wrapped)) == set()


def without_formula(profile: ipu_model.Profile) -> set[str]:
    """Return the ops that a profile has no formula for, without their overloads."""
    return {op.target.rpartition(".")[0] for op in profile.fallbacks}


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point tensors of a module: whole numbers are constants of the device."""
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


def agree(some: Any, others: Any) -> None:
    """Compare the tensors of two structures; 64-bit whole numbers come back from the device as 32-bit ones."""
    left, right = tree_leaves(some), tree_leaves(others)
    assert len(left) == len(right)
    for one, other in zip(left, right):
        if not isinstance(other, Tensor):
            assert one == other
            continue
        other = other.detach().int() if other.dtype == torch.int64 else other.detach()
        assert one.numel() == other.numel()
        torch.testing.assert_close(one.reshape(other.shape), other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
