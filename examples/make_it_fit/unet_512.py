"""A U-Net of 31 million parameters for pictures of 512 pixels, in float32 on one IPU, with AdamW."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

CHANNELS, PIXELS, CLASSES = (64, 128, 256, 512, 1024), 512, 2


def convolutions(before: int, after: int) -> nn.Module:
    """Two convolutions of 3 x 3, each normalised."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.GroupNorm(8, after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Pictures [N, 3, H, W] and classes of their pixels [N, H, W] to the loss."""

    def __init__(self) -> None:
        super().__init__()
        sizes = list(zip(CHANNELS, CHANNELS[1:]))
        self.first = convolutions(3, CHANNELS[0])
        self.downs = nn.ModuleList(convolutions(before, after) for before, after in sizes)
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, stride=2) for high, low in reversed(sizes))
        self.ups = nn.ModuleList(convolutions(low, high) for high, low in reversed(sizes))
        self.head = nn.Conv2d(CHANNELS[0], CLASSES, 1)

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        x, skipped = self.first(pictures), []
        for down in self.downs:
            skipped.append(x)
            x = down(F.max_pool2d(x, 2))
        for enlarge, up in zip(self.enlarge, self.ups):
            x = up(torch.cat([skipped.pop(), enlarge(x)], dim=1))
        return F.cross_entropy(self.head(x).float(), classes)


def training() -> dict[str, Any]:
    """A picture in each micro-batch, 32 in a batch."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(32)
    with torch.device("meta"):  # the sizes are enough
        model, classes = UNet(), torch.zeros(1, PIXELS, PIXELS).long()
        pictures = torch.zeros(1, 3, PIXELS, PIXELS)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    return {
        "model": model, "inputs": (pictures, classes), "options": options, "optimizer": optimizer,
        "micro_batch": True,
    }  # fmt: skip
