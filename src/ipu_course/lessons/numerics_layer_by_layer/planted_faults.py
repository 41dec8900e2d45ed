"""Layers to test in half precision: right ones, and the same with a planted fault of numerics."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor, nn

import poptorch

WIDTH = 512


class Softmax(nn.Module):
    """Softmax of each row [N, K], with the largest value subtracted first."""

    def forward(self, x: Tensor) -> Tensor:
        powers = torch.exp(x - x.amax(1, keepdim=True))
        return powers / powers.sum(1, keepdim=True)


class SoftmaxWithoutMaximum(nn.Module):
    """Planted fault: exponentials of the values as they are."""

    def forward(self, x: Tensor) -> Tensor:
        powers = torch.exp(x)
        return powers / powers.sum(1, keepdim=True)


class Mean(nn.Module):
    """Mean of each row: [N, K] to [N, 1], as a sum of small parts."""

    def forward(self, x: Tensor) -> Tensor:
        return (x / x.shape[1]).sum(1, keepdim=True)


class MeanBySum(nn.Module):
    """Planted fault: the whole sum, before it is divided."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True) / x.shape[1]


class Variance(nn.Module):
    """Variance of each row: [N, K] to [N, 1], from the differences to the mean."""

    def forward(self, x: Tensor) -> Tensor:
        difference = x - x.mean(1, keepdim=True)
        return (difference * difference).mean(1, keepdim=True)


class VarianceInOnePass(nn.Module):
    """Planted fault: the mean of the squares minus the square of the mean."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        return (x * x).mean(1, keepdim=True) - mean * mean


class Directions(nn.Module):
    """Rows scaled to length 1, each divided by its largest value first: [N, K] to [N, K]."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / x.abs().amax(1, keepdim=True)
        return scaled / (scaled * scaled).sum(1, keepdim=True).sqrt()


class DirectionsOfSmallSquares(nn.Module):
    """Planted fault: the squares of the values as they are, which become zero for small ones."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x * x).sum(1, keepdim=True).sqrt()


@dataclass(frozen=True)
class LayerWithTwin:
    """A layer, its twin with a planted fault, and how to test them.

    ``roundings`` are the operations that round one after another; ``inputs`` bring the fault to light, and ``chosen``
    describes them.
    """

    name: str
    right: Callable[[], nn.Module]
    faulty: Callable[[], nn.Module]
    roundings: int
    inputs: Tensor
    chosen: str


def _random(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


_WIDE = (_random(8, WIDTH, 0) * 4).half()
_AROUND_1000 = (1_000 + 10 * _random(8, WIDTH, 1)).half()
_AROUND_100 = (100 + _random(8, WIDTH, 2)).half()
_SMALL = (1e-5 * _random(8, WIDTH, 3)).half()
TESTED = (
    LayerWithTwin("softmax", Softmax, SoftmaxWithoutMaximum, 4, _WIDE, "a wide spread"),
    LayerWithTwin("mean", Mean, MeanBySum, 2, _AROUND_1000, "around 1,000"),
    LayerWithTwin("variance", Variance, VarianceInOnePass, 4, _AROUND_100, "around 100"),
    LayerWithTwin("directions", Directions, DirectionsOfSmallSquares, 5, _SMALL, "around 0.00001"),
)
USUAL_INPUTS = _random(8, WIDTH, 4).half()


def in_half(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Run a copy of ``layer`` in float16 with poptorch, and return what it gives."""
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(copy.deepcopy(layer).half().eval(), options)
    try:
        result: Tensor = model(inputs.half())
    finally:
        model.destroy()
    return result
