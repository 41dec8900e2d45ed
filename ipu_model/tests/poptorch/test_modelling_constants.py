"""Where the tensors lie that forward makes of nothing: behind one another, in the order in which it makes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import Profile


class Scaled(nn.Module):
    """The input times as many constants as asked for, each of another size."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        for size in self.sizes:
            x = x * torch.linspace(0, 1, size).max()
        return x


def profiled(sizes: list[int]) -> Profile:
    options = poptorch.Options().showCompilationProgressBar(False)
    return ipu_model.profile_module(Scaled(sizes), torch.ones(4), options, training=False)


def constants_of(profile: Profile) -> tuple[float, ...]:
    return next(category.tiles for category in profile.memory[0].categories if category.name == "constants")


def test_they_lie_behind_one_another_in_the_order_of_forward() -> None:
    """A tile takes 32 elements of 4 bytes before the next one is filled: two constants of 40 and 10 take three."""
    assert constants_of(profiled([40, 10]))[:4] == (128.0, 32.0, 40.0, 0.0)
    assert constants_of(profiled([10, 40]))[:4] == (40.0, 128.0, 32.0, 0.0)


def test_the_same_program_has_the_same_memory_every_time() -> None:
    sizes = [33 + 7 * number for number in range(12)]
    first, *others = (profiled(sizes).memory for _ in range(6))
    assert others == [first] * 5
