"""A program as a user writes it, whose functions the tests of the commands name."""

from __future__ import annotations

from typing import Any

import torch
from executor_support import Module, quiet
from executor_support import inference as wrapped
from modelling_support import Chain, trainable
from torch import nn

import poptorch


def training() -> tuple[Any, ...]:
    model = Chain(2)
    return model, (torch.zeros(6, 8),) * 2, trainable(2), poptorch.optim.SGD(model.parameters(), lr=0.1)


def inference() -> dict[str, Any]:
    """Return the arguments of profile_module by name, with the inputs of one micro-batch."""
    options = poptorch.Options().deviceIterations(100)
    return {"model": Chain(1), "inputs": torch.zeros(2, 8), "options": options, "micro_batch": True}


def executor() -> Any:
    made = wrapped(Chain(1))
    made.compile(torch.zeros(2, 8))
    return made


def loader() -> Any:
    return poptorch.DataLoader(poptorch.Options(), torch.utils.data.TensorDataset(torch.zeros(8, 8)), batch_size=2)


def squares(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model.layers(x).float(), y.float())


def wide() -> dict[str, Any]:
    """Return four linear layers whose weights, gradients and moments take twice the memory of an IPU."""
    with torch.device("meta"):
        layers, x = nn.Sequential(*(nn.Linear(5120, 5120, bias=False) for _ in range(4))), torch.zeros(4, 5120)
    model, options = Module(squares, layers=layers), quiet(accumulation=16)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "inputs": (x, x), "options": options, "optimizer": optimizer, "micro_batch": True}


def with_arguments(size: int) -> int:
    return size


def compiled_wide() -> Any:
    given = wide()
    model = poptorch.trainingModel(given["model"], given["options"], given["optimizer"])
    model.compile(torch.zeros(64, 5120), torch.zeros(64, 5120))
    return model
