"""Wraps a plain function as a model's `forward`, so that a test shows little but the operator it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from executor_support import Module, quiet
from torch import Tensor, nn

import poptorch


class FunctionModel(Module):
    """A model with two convolutions and a linear layer whose forward is `function(model, *inputs)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        super().__init__(function, linear=nn.Linear(4, 4), conv_a=nn.Conv2d(1, 2, 3), conv_b=nn.Conv2d(1, 2, 3))


def on_device(function: Callable[..., Any], options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(FunctionModel(function).eval(), options or quiet())


def in_training(function: Callable[..., Any], options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(FunctionModel(function), options or quiet())


def compiled_ops(function: Callable[..., Any], *inputs: Tensor) -> list[torch.fx.Node]:
    """Compile `function` for inference and return the ops of its graph."""
    return [node for node in graph_of(on_device(function), *inputs).ops.nodes if node.op == "call_function"]


def graph_of(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> Any:
    """Compile for these inputs and return the graph."""
    executor.compile(*inputs)
    assert executor._compiled is not None
    return executor._compiled.graph
