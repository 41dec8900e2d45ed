"""Models for the tests of the performance model behind `poptorch`, and the program that options make of them."""

from __future__ import annotations

from typing import Any

import torch
from executor_support import quiet
from torch import Tensor, nn

import poptorch
from ipu_model.front_ends import program_of_module
from ipu_model.predict.program import Program

ROWS = 2


class Chain(nn.Module):
    """`ipus` linear layers, one on each IPU; `forward(x)` returns the result, `forward(x, y)` with it the loss."""

    def __init__(self, ipus: int = 2) -> None:
        super().__init__()
        self.layers, self.loss = nn.ModuleList(nn.Linear(8, 8) for _ in range(ipus)), nn.MSELoss()
        for number, layer in enumerate(self.layers):
            poptorch.BeginBlock(layer, ipu_id=number)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x if y is None else (x, self.loss(x, y))


def trainable(ipus: int = 2, accumulation: int | None = None) -> poptorch.Options:
    """Return options with the least accumulation that a pipeline over `ipus` IPUs needs (2 K - 1)."""
    return quiet(accumulation=2 * ipus - 1 if accumulation is None else accumulation)


def batch(options: poptorch.Options) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of one call with `ROWS` rows in each micro-batch, without data."""
    calls = options.device_iterations * options.Training.gradient_accumulation
    rows = ROWS * calls * options.replication_factor // options.input_group_size
    return (torch.empty(rows, 8, device="meta"),) * 2


def trained(options: poptorch.Options, ipus: int = 2, optimizer: Any = None, **more: Any) -> Program:
    model = Chain(ipus)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer(model)
    return program_of_module(options, model, batch(options), optimizer=optimizer, **more)


def inferred(options: poptorch.Options, ipus: int = 2, **more: Any) -> Program:
    return program_of_module(options, Chain(ipus), batch(options)[0], **more)
