"""ResNet-50 as a published submission to MLPerf trained it on a POD16, one IPU for each replica: what scales well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

__all__ = ["ACCUMULATION", "MICRO_BATCH", "PUBLISHED_RATE", "PUBLISHED_REPLICAS", "published_resnet50"]

# MLPerf Training v1.1, Graphcore POD16: 43.19 s for an epoch of 1,281,167 images.
PUBLISHED_REPLICAS, PUBLISHED_RATE = 16, 1_281_167 / 43.19
MICRO_BATCH, ACCUMULATION, SIDE = 20, 10, 224
CHECKPOINTS = ("layer1.0", "layer1.2", "layer2.0", "layer2.2", "layer3.0", "layer3.3")
RECOMPUTE_ALL = 4  # PopART's RecomputationType: all but what the checkpoints keep


class Checkpoint(nn.Module):
    """A layer whose result is kept for the backward pass; what lies between two of them is computed again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        kept: Tensor = poptorch.recomputationCheckpoint(self.layer(images))
        return kept


def resnet50() -> nn.Module:
    """Images [N, 3, 224, 224] uint8 and labels [N] to (loss, logits, accuracy), in float16: shapes, no numbers."""
    with torch.device("meta"):
        network: Any = torchvision.models.resnet50()
        for name in CHECKPOINTS:
            group, _, place = name.partition(".")
            blocks = getattr(network, group)
            blocks[int(place)] = Checkpoint(blocks[int(place)])
        return ClassifierWithLoss(network, NormaliseOnDevice(torch.float16)).half()


def published_resnet50() -> ModelledModule:
    """Return the program with one replica, ready to be profiled, or ``NOT_MODELLED`` without an IPU Model."""
    model = resnet50()
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.Precision.setPartialsType(torch.half)
    options.setAvailableMemoryProportion({"IPU0": 0.15})
    options._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    state: Any = {"accum_type": torch.half, "velocity_accum_type": torch.half, "use_combined_accum": False}
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=128, **state)
    images = torch.empty(MICRO_BATCH, 3, SIDE, SIDE, dtype=torch.uint8, device="meta")
    labels = torch.empty(MICRO_BATCH, dtype=torch.int64, device="meta")
    return engine.modelled_module(model, (images, labels), options, optimizer)
