"""A classifier of digits for a 12-bit camera: it learns in float32, and its energies leave the range of float16."""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course.datasets.images import MNIST_MEAN, MNIST_STD

BRIGHTEST = 4095.0  # what a camera of 12 bits reports for white

Wrap = Callable[..., nn.Module]


class Square(nn.Module):
    """Each value times itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


class LogOfOnePlus(nn.Module):
    """The logarithm of each value plus one."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).log()


class CameraDigits(nn.Module):
    """Images [N, 1, 28, 28], normalised, to logits [N, 10]; with labels [N] to (logits, cross-entropy).

    The layers see black ink on white paper in the values of a 12-bit camera. ``wrap`` makes one module of the three
    layers that compute with energies; the weights are the same every time.
    """

    def __init__(self, wrap: Wrap | None = None) -> None:
        super().__init__()
        energies: OrderedDict[str, nn.Module] = OrderedDict(energy=Square(), pool=nn.AvgPool2d(3), log=LogOfOnePlus())
        if wrap is not None:
            energies = OrderedDict(wrapped=wrap(*energies.values()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            filters, head = nn.Conv2d(1, 16, 5, stride=2), nn.Linear(256, 10)
        ends = OrderedDict(norm=nn.GroupNorm(1, 16), flatten=nn.Flatten(), head=head)
        for name, layer in [("filters", filters), *energies.items(), *ends.items()]:
            self.add_module(name, layer)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = (1 - (images * MNIST_STD + MNIST_MEAN)) * BRIGHTEST
        for layer in self.children():
            x = layer(x)
        if labels is None:
            return x
        return x, poptorch.identity_loss(F.cross_entropy(x.float(), labels), reduction="none")
