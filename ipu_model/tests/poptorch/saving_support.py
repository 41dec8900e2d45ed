"""A model with dropout, running statistics, constants and containers of results, for tests of files and the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import poptorch

X = torch.linspace(-1, 1, 32).reshape(8, 4)
Y = torch.linspace(0, 1, 16).reshape(8, 2)


class Mixed(nn.Module):
    """`forward(x)` returns a list; `forward(x, y)` a dict with the loss."""

    def __init__(self, width: int = 4, scale: float = 0.5) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3)
        self.second, self.loss, self.scale = nn.Linear(width, 2), nn.MSELoss(), scale
        self.register_buffer("steps", torch.tensor([1, 2]))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        out = self.second(hidden) * self.scale + self.steps
        return [out, (hidden, 7)] if y is None else {"out": out, "loss": self.loss(out, y)}


def options(cache: object = None) -> poptorch.Options:
    """Return options with a seed, quiet, and with a cache if its folder is given."""
    made = poptorch.Options().showCompilationProgressBar(False).randomSeed(11)
    return made if cache is None else made.enableExecutableCaching(str(cache))
