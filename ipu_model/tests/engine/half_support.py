"""Runs small functions as half-precision models: one micro-batch, forward only or forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from half_cases import Case, Op
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.batching import Batching, Returns
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.session import Session


class Calls(nn.Module):
    """A module without weights that computes a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def infer(function: Callable[..., Any] | nn.Module, *inputs: Tensor, **settings: Any) -> list[Tensor]:
    """Return what a model without loss returns for one micro-batch; `settings` are those of `Arithmetic`."""
    module = function if isinstance(function, nn.Module) else Calls(function)
    session = Session(traced(module, *inputs, training=False), Batching(), Returns(), arithmetic=Arithmetic(**settings))
    session.upload(dict(module.state_dict()))
    return session.run(list(inputs))


def differentiate(function: Callable[..., Tensor], seed: Tensor, **weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output of `function(**weights)` and its gradients for the loss gradient `seed`."""
    module = Op(Case("function", function, weights), next(iter(weights.values())).dtype)
    graph = traced(module)
    state = module.state_dict()
    with torch.no_grad():
        arguments = [*(state[v.name].float() for v in graph.variables), seed.float()]
        outputs, gradients = build(graph, Arithmetic()).module(*arguments)
    return outputs[0], dict(zip(graph.gradients, gradients))


def half(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float16)
