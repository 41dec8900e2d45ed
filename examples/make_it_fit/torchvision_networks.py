"""torchvision's ViT-L/16 and ResNet-152 as they are, in float32 on one IPU, with AdamW."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import poptorch


class WithLoss(nn.Module):
    """Pictures [N, 3, 224, 224] and classes [N] to the loss of a network that returns logits [N, 1000]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.network(pictures).float(), classes)


def vit_large() -> dict[str, Any]:
    """Two pictures in each micro-batch, 256 in a batch."""
    return _training(torchvision.models.vit_l_16, rows=2, accumulation=128)


def resnet_152() -> dict[str, Any]:
    """Four pictures in each micro-batch, 256 in a batch."""
    return _training(torchvision.models.resnet152, rows=4, accumulation=64)


def _training(network: Any, rows: int, accumulation: int) -> dict[str, Any]:
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    with torch.device("meta"):  # the sizes are enough
        model = WithLoss(network())
        pictures, classes = torch.zeros(rows, 3, 224, 224), torch.zeros(rows).long()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    return {
        "model": model, "inputs": (pictures, classes), "options": options, "optimizer": optimizer,
        "micro_batch": True,
    }  # fmt: skip
