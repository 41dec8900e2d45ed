"""The network of the hunt: digits in four blocks, with a layer of the lesson between the two convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.programs.mnist.model import ConvLayer

BLOCKS = ("B1", "B2", "B3", "B4")


class UnitScale(nn.Module):
    """Scale each image so that its power, the mean of its squares, becomes 1."""

    def forward(self, x: Tensor) -> Tensor:
        power = (x * x).mean(dim=(1, 2, 3), keepdim=True)
        return x * torch.rsqrt(power + 0.001)


class DigitNetwork(nn.Module):
    """Digits [N, 1, 28, 28] to logits [N, 10]; with labels [N] it gives (logits, mean cross-entropy []).

    ``layer1``, ``scale``, ``layer3`` and ``layer4`` begin the blocks B1 to B4; ``layer2`` is in B2, too.
    """

    def __init__(self, scale: nn.Module) -> None:
        super().__init__()
        self.layer1, self.layer2 = ConvLayer(1, 10, 5, 2), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4 = nn.Linear(320, 64), nn.Linear(64, 10)
        self.scale = scale
        self.loss = nn.CrossEntropyLoss()
        for block, layer in zip(BLOCKS, (self.layer1, self.scale, self.layer3, self.layer4)):
            poptorch.BeginBlock(layer, block)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = self.layer2(self.scale(self.layer1(images)))
        logits: Tensor = self.layer4(torch.relu(self.layer3(x.flatten(1))))
        return logits if labels is None else (logits, self.loss(logits, labels))
