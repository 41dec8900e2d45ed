"""Small functions as half-precision models: one micro-batch, forward only or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from tracing_support import Net, session_of, traced

from ipu_model.capture import tracing
from ipu_model.compute.replay import Arithmetic, build

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One op: `compute(**weights, **inputs, **buffers)` returns the tensor that is differentiated."""

    name: str
    compute: Callable[..., Tensor]
    weights: Tensors
    inputs: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Op(nn.Module):
    """A module that computes a case and makes its result the loss, whatever its shape."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        super().__init__()
        self.compute, self.input_names = case.compute, list(case.inputs)
        self.names = [*case.weights, *case.buffers]
        for name, tensor in case.weights.items():
            setattr(self, name, nn.Parameter(tensor.to(dtype)))
        for name, tensor in case.buffers.items():
            self.register_buffer(name, tensor.to(dtype))

    def forward(self, *inputs: Tensor) -> Tensor:
        own = {name: getattr(self, name) for name in self.names}
        result = self.compute(**own, **dict(zip(self.input_names, inputs)))
        trace = tracing.current()
        if trace is not None:
            trace.loss_marks.append(result)
        return result


_random = torch.Generator().manual_seed(0)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers on the float16 grid."""
    return (torch.randn(shape, generator=_random) * scale).half()


def positive(*shape: int) -> Tensor:
    """Numbers in (0.05, 3) on the float16 grid."""
    return (torch.rand(shape, generator=_random) * 2.9 + 0.1).half()


def below_one(*shape: int) -> Tensor:
    """Numbers in (0.05, 0.95) on the float16 grid."""
    return (torch.rand(shape, generator=_random) * 0.9 + 0.05).half()


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=_random)


def infer(function: Callable[..., Any] | nn.Module, *inputs: Tensor, **settings: Any) -> list[Tensor]:
    """Return what a model without loss returns for one micro-batch; `settings` are those of `Arithmetic`."""
    module = function if isinstance(function, nn.Module) else Net(lambda net, *tensors: function(*tensors))
    session = session_of(module, *inputs, training=False, arithmetic=Arithmetic(**settings))
    return session.run(list(inputs))


def infer_each(functions: Sequence[Callable[..., Tensor]], *inputs: Tensor, **settings: Any) -> list[Tensor]:
    """Return what each function returns for the same inputs; one model computes them all."""
    return infer(lambda *tensors: tuple(function(*tensors) for function in functions), *inputs, **settings)


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
