"""A model of nothing but weights that all want to grow, equally in every update: what rounding does to updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import poptorch

WEIGHTS = 1_000


class SteadyUpdates(nn.Module):
    """1,000 weights of ``dtype`` that start at 1; the gradient of each is -1, whatever the input [N] of ones.

    Gives the mean of the weights [] in float32, and what to minimise.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WEIGHTS, dtype=dtype))

    def forward(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        loss = -(self.weight * ones).sum()
        return self.weight.float().mean(), poptorch.identity_loss(loss, reduction="none")
