"""A model with dropout, running statistics and a dict of results, trained with and without files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import poptorch

X = torch.linspace(-1, 1, 32).reshape(8, 4)
Y = torch.linspace(0, 1, 16).reshape(8, 2)


class Mixed(nn.Module):
    """`forward(x)` returns a list; `forward(x, y)` a dict with the loss."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(width, 2)
        self.scale = 0.5
        self.register_buffer("steps", torch.tensor([1, 2]))
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        out = self.second(hidden) * self.scale + self.steps
        return [out, (hidden, 7)] if y is None else {"out": out, "loss": self.loss(out, y)}


def options(cache: object = None) -> poptorch.Options:
    """Return options with a seed, quiet, and with a cache if its folder is given."""
    made = poptorch.Options().showCompilationProgressBar(False).randomSeed(11)
    return made if cache is None else made.enableExecutableCaching(str(cache))


def training(
    cache: object = None, model: nn.Module | None = None, own: poptorch.Options | None = None
) -> poptorch.PoplarExecutor:
    """Wrap a model, `Mixed` from fixed weights by default, for training with AdamW."""
    torch.manual_seed(0)
    model = Mixed() if model is None else model
    return poptorch.trainingModel(model, own or options(cache), poptorch.optim.AdamW(model.parameters(), lr=0.1))


def steps(executor: poptorch.PoplarExecutor, count: int) -> list[Tensor]:
    """Train and return every result of the last step, then weights, buffers and the optimiser's state."""
    for _ in range(count):
        results = executor(X, Y)
    assert executor._optimisation is not None
    state = executor._optimisation.optimizer.state_dict()["ipu_state"]
    return [*results.values(), *(t.clone() for t in executor.state_dict().values()), *state.values()]


def all_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists hold the same tensors, bit by bit."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others))
