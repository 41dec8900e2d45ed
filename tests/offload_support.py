"""A module whose state is easy to count: one weight of 128 x 128 elements, enough to be sharded (8,192 and more)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine

ELEMENTS = 128 * 128


class OneWeight(nn.Module):
    """Rows [N, 128] to the sum of their products with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return poptorch.identity_loss(self.linear(x).sum(), reduction="none")


def one_weight(options: poptorch.Options | None = None) -> engine.ModelledModule:
    """The module with AdamW, its moments in 32 bits, and accumulation 4 unless the options say otherwise."""
    module = OneWeight()
    if options is None:
        options = poptorch.Options()
        options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.1)
    found = engine.modelled_module(module, (torch.zeros(2, 128),), options, optimizer)
    assert found is not None
    return found
