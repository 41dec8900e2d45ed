"""The programs of which lesson 03 asks what device iterations gain, captured for the IPU Model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_course import engine, ladder
from ipu_course.lessons.device_iterations.explorer import PIXELS, RESNET, SMALL
from ipu_course.models import ClassifierWithLoss, SmallNetwork

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule


class PixelNetwork(nn.Module):
    """Images [N, 3, 32, 32] to ten logits for every pixel, and the loss with labels [N, 32, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 10, 3, padding=1))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layers(images)
        return logits, nn.functional.cross_entropy(logits, labels)


def modelled_programs() -> dict[str, ModelledModule]:
    """Capture the explorer's programs: a small one, one whose outputs are large, and the workshop's."""
    return {SMALL: small_program(), PIXELS: _pixels(), RESNET: _resnet()}


def small_program() -> ModelledModule:
    """Capture a small network's inference with 16 images of 32 x 32 pixels."""
    return engine.modelled_module(SmallNetwork(), (torch.zeros(16, 3, 32, 32),), poptorch.Options())


def _pixels() -> ModelledModule:
    model = PixelNetwork()
    inputs = (torch.zeros(16, 3, 32, 32), torch.zeros(16, 32, 32, dtype=torch.int64))
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    return engine.modelled_module(model, inputs, options, torch.optim.SGD(model.parameters(), lr=0.1))


def _resnet() -> ModelledModule:
    resnet: Any = torchvision.models.resnet101()
    resnet.layer3[8] = poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
    model = ClassifierWithLoss(resnet).half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    optimiser = poptorch.optim.AdamW(
        model.parameters(),
        lr=0.001,
        loss_scaling=1000,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
    )
    return engine.modelled_module(model, ladder.micro_batch(torch.float16), options, optimiser)
