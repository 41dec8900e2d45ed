"""Captures the programs whose hardware measurements are published, for the tests of the performance model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from tracing_support import traced

from ipu_model import tracing
from ipu_model.graph import Graph


class Classifier(nn.Module):
    """A torchvision model with what the day-03 program returns: loss, logits and accuracy in per cent."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels).clone()  # the copy is what identity_loss(..., "none") records
        trace = tracing.current()
        if trace is not None:
            trace.mark_loss(loss)
        accuracy = (logits.argmax(1) == labels).float().mean() * 100
        return loss, logits, accuracy


def begin_block(layer: nn.Module, ipu: int) -> None:
    """Start a block on `ipu` whenever `layer` is called, as `poptorch.BeginBlock` does."""

    def enter(module: nn.Module, args: Any) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.begin_block(None, ipu)

    layer.register_forward_pre_hook(enter)


@lru_cache(maxsize=4)
def day03(dtype: torch.dtype = torch.float16, batch: int = 64) -> Graph:
    """ResNet-101 on 64 x 64 images, cut before layer3[8] (published/day03-resnet101.md)."""
    model = torchvision.models.resnet101()
    begin_block(model.layer3[8], 1)
    images = torch.zeros(batch, 3, 64, 64, dtype=dtype)
    return traced(Classifier(model).to(dtype), images, torch.zeros(batch, dtype=torch.int32))


@lru_cache(maxsize=1)
def mlperf_resnet50() -> Graph:
    """ResNet-50 on 224 x 224 images, micro-batch 20, fp16 (published/other.md, M1)."""
    images = torch.zeros(20, 3, 224, 224, dtype=torch.float16)
    return traced(Classifier(torchvision.models.resnet50()).half(), images, torch.zeros(20, dtype=torch.int32))
