"""The workshop's ResNet-101 over two IPUs, with the options that a learner chose for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torchvision

import poptorch
from ipu_course import engine, ladder
from ipu_course.models import ClassifierWithLoss

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

ACCUMULATION = 8
# The workshop's micro-batch has 64 images. In 32 bits, half as many come nearer to fitting.
MICRO_BATCH = {torch.float32: 32, torch.float16: 64}
HALF: dict[str, Any] = {
    "accum_type": torch.float16,
    "first_order_momentum_accum_type": torch.float16,
    "second_order_momentum_accum_type": torch.float32,
    "loss_scaling": 1000,
}


def resnet101(options: poptorch.Options, dtype: torch.dtype = torch.float32) -> ModelledModule:
    """Capture the program that trains with AdamW, in micro-batches of 32 images in 32 bits or 64 in 16 bits."""
    model = torchvision.models.resnet101()
    model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # the workshop's cut
    module = ClassifierWithLoss(model).to(dtype)
    types = HALF if dtype is torch.float16 else {}
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.001, **types)
    return engine.modelled_module(module, ladder.micro_batch(dtype, MICRO_BATCH[dtype]), options, optimizer)


def training_options() -> poptorch.Options:
    """Return new options with the lesson's accumulation and everything on the chip."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    return options
