"""The ops that half precision is tested on: a function, its weights, inputs and buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ipu_model import tracing

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
            trace.mark_loss(result)
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
