"""A program as a user writes it, whose functions the tests of the commands name."""

from __future__ import annotations

from typing import Any

import torch
from executor_support import Module, quiet
from executor_support import inference as wrapped
from modelling_support import Chain, trainable
from torch import Tensor, nn

import poptorch

X = torch.zeros(6, 8), torch.zeros(6, 8)


def training() -> tuple[Any, ...]:
    """Return what profile_module takes, with an optimiser."""
    model = Chain(2)
    return model, X, trainable(2), poptorch.optim.SGD(model.parameters(), lr=0.1)


def inference() -> dict[str, Any]:
    """Return the arguments of profile_module by name, with the inputs of one micro-batch."""
    options = poptorch.Options().deviceIterations(100)
    return {"model": Chain(1), "inputs": torch.zeros(2, 8), "options": options, "micro_batch": True}


def executor() -> Any:
    made = wrapped(Chain(1))
    made.compile(torch.zeros(2, 8))
    return made


def loader() -> Any:
    """Return a loader of eight samples."""
    return poptorch.DataLoader(poptorch.Options(), torch.utils.data.TensorDataset(torch.zeros(8, 8)), batch_size=2)


# Mistakes.


def branching() -> tuple[Any, ...]:
    return Module(lambda model, x: -x if x.sum() > 0 else x), torch.zeros(2, 8), poptorch.Options()


def rows_left_over() -> tuple[Any, ...]:
    return Chain(1), torch.zeros(3, 8), poptorch.Options().deviceIterations(2)


def wrong_width() -> tuple[Any, ...]:
    return Chain(1), torch.zeros(2, 9), poptorch.Options()


def optimizer_of_another() -> tuple[Any, ...]:
    return Chain(2), X, trainable(2), poptorch.optim.SGD(Chain(2).parameters(), lr=0.1)


def two_values() -> tuple[Any, ...]:
    return Chain(1), torch.zeros(2, 8)


def misspelt() -> dict[str, Any]:
    return {"model": Chain(1), "input": torch.zeros(2, 8), "options": poptorch.Options()}


def nothing() -> None:
    pass


def other_options() -> tuple[Any, ...]:
    return Chain(1), torch.zeros(2, 8), {"deviceIterations": 3}


def failing() -> None:
    raise KeyError("weights.pt")


def with_arguments(size: int) -> int:
    return size


# A program that is too large for one IPU.


class Wide(nn.Module):
    """Four linear layers whose weights, gradients and moments take twice the memory of an IPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(5120, 5120, bias=False) for _ in range(4)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers(x).float(), y.float())


def wide() -> dict[str, Any]:
    with torch.device("meta"):
        model, x = Wide(), torch.zeros(4, 5120)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    options = quiet(accumulation=16)
    return {"model": model, "inputs": (x, x), "options": options, "optimizer": optimizer, "micro_batch": True}


def compiled_wide() -> Any:
    """Compile it, which fails for want of memory."""
    given = wide()
    model = poptorch.trainingModel(given["model"], given["options"], given["optimizer"])
    model.compile(torch.zeros(64, 5120), torch.zeros(64, 5120))
    return model
