"""How often programs are compiled: counted while they run, and found in the folder of an executable cache."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

from torch import Tensor, nn

import poptorch
from ipu_course.lessons.the_host_path.land_cover import land_cover

SMALL_SIDE = 8
SMALL_WIDTH, SMALL_LAYERS = 8, 2


@dataclass
class Compilations:
    """How many compilations there have been; it grows while it counts."""

    count: int = 0


@contextmanager
def count_compilations() -> Iterator[Compilations]:
    """Count the compilations of all models in the body."""
    found = Compilations()

    def note() -> None:
        found.count += 1

    handle = poptorch.registerPostCompileHook(note)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def count_calls(model: Any) -> Iterator[list[int]]:
    """Note how many images each call of a model gets in the body."""
    kind, sizes = type(model), list[int]()
    call = kind.__call__

    def noted(self: Any, images: Tensor, *rest: Any, **named: Any) -> Any:
        if self is model:
            sizes.append(len(images))
        return call(self, images, *rest, **named)

    with mock.patch.object(kind, "__call__", noted):
        yield sizes


def programs_in(folder: str) -> int:
    """Return how many programs an executable cache holds: its files without the hidden ones, such as its lock."""
    return sum(1 for each in Path(folder).iterdir() if each.is_file() and not each.name.startswith("."))


def small_land_cover() -> nn.Module:
    """Return a small network from images [N, 12, 8, 8] to scores [N, 11, 8, 8], ready for inference."""
    return land_cover(SMALL_WIDTH, SMALL_LAYERS).eval()


class Scaled(nn.Module):
    """Divides images [N, 12, H, W] by a constant and returns the mean scores [N, 11] of the small network."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.network = small_land_cover()
        self.divisor = divisor

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images / self.divisor)
        return scores.mean((2, 3))
