"""Hooks of modules and parameters, and wrappers of torch that work by hooks: a wrapped model trains as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import inference, training
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import poptorch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        out = self.second(self.first(x)) * scale
        return out, poptorch.identity_loss(out, "sum")


CHANGES: dict[str, Callable[[Two], Any]] = {
    "forward": lambda m: m.first.register_forward_hook(lambda module, args, out: out * 2),
    "forward, of the model": lambda m: m.register_forward_hook(lambda module, args, out: (out[0] * 2, out[1])),
    "forward, with keywords": lambda m: m.register_forward_hook(
        lambda module, args, kwargs, out: (out[0] * kwargs.get("scale", 1.0), out[1]),
        with_kwargs=True,
        always_call=True,
    ),
    "before forward": lambda m: m.second.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "before forward, with keywords": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": 3.0}), with_kwargs=True
    ),
    "full backward": lambda m: m.second.register_full_backward_hook(
        lambda module, inputs, outputs: tuple(g * 2 for g in inputs)
    ),
    "before full backward": lambda m: m.second.register_full_backward_pre_hook(
        lambda module, outputs: tuple(g * 2 for g in outputs)
    ),
    "parameter": lambda m: m.first.weight.register_hook(lambda gradient: gradient * 3),
    "weight norm by a hook": lambda m: torch.nn.utils.weight_norm(m.first),
    "spectral norm by a hook": lambda m: torch.nn.utils.spectral_norm(m.first),
    "weight norm": lambda m: parametrizations.weight_norm(m.first),
    "spectral norm": lambda m: parametrizations.spectral_norm(m.first),
    "orthogonal": lambda m: parametrizations.orthogonal(m.first),
    "own parametrisation": lambda m: parametrize.register_parametrization(m.first, "weight", nn.Tanh()),
    "pruning": lambda m: prune.l1_unstructured(m.first, "weight", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_two_steps_are_those_of_pytorch(change: str) -> None:
    model, plain = Two(), Two()
    for each in (model, plain):
        torch.manual_seed(0)
        CHANGES[change](each)
    executor = training(model, lr=0.125)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.125)
    for _ in range(2):
        optimiser.zero_grad()
        expected, loss = plain(X)
        loss.backward()
        optimiser.step()
        torch.testing.assert_close(executor(X)[0], expected.detach())
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_a_hook_runs_once_for_each_compilation_and_not_after_it_was_removed() -> None:
    seen = []
    model = Two()
    handle = model.first.register_forward_hook(lambda module, args, out: seen.append(poptorch.isRunningOnIpu()))
    executor = inference(model)
    executor(X)
    executor(X)
    assert seen == [True]
    handle.remove()
    executor.destroy()
    executor(X)
    assert seen == [True]


def test_a_tensor_that_a_hook_kept_from_a_trace_is_no_input() -> None:
    kept: list[Tensor] = []
    model = Two()
    model.first.register_forward_hook(lambda module, args, out: kept.append(out))
    inference(model)(X)
    with pytest.raises(poptorch.Error, match=r"has no data.*anchorTensor"):
        inference(Two())(kept[0].detach())
