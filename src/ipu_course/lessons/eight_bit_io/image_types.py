"""The workshop's ResNet-101 with images of each type, captured to be profiled."""

from __future__ import annotations

from typing import Callable, Mapping

import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_course import engine, ladder
from ipu_course.call_parts import CallParts, call_parts
from ipu_course.engine import ModelledModule
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "uint8": torch.uint8}


class CastToHalf(nn.Module):
    """Cast images to fp16: what a device has to do with fp32 images that are normalised already."""

    def forward(self, images: Tensor) -> Tensor:
        return images.half()


FIRST_LAYERS: Mapping[str, Callable[[], nn.Module | None]] = {
    "fp32": CastToHalf,
    "fp16": lambda: None,
    "uint8": lambda: NormaliseOnDevice(torch.float16),
}


@engine.needs_the_model
def programs_by_image_type() -> dict[str, ModelledModule]:
    """Capture the workshop's program three times; only the type of its images and its first layer differ."""
    return {name: _captured(name) for name in TYPES}


@engine.needs_the_model
def parts_by_image_type(programs: Mapping[str, ModelledModule]) -> dict[str, CallParts]:
    """Take one call of each program apart, with the host that was fitted for images of its type."""
    return {
        name: call_parts(program.profile(host=ladder.host(eight_bit_io=name == "uint8")))
        for name, program in programs.items()
    }


def _captured(image_type: str) -> ModelledModule:
    options = poptorch.Options()
    options.deviceIterations(4)
    options.Training.gradientAccumulation(8)
    network = torchvision.models.resnet101()
    network.layer3[8] = poptorch.BeginBlock(network.layer3[8], ipu_id=1)
    module = ClassifierWithLoss(network, FIRST_LAYERS[image_type]()).half()
    optimizer = poptorch.optim.AdamW(
        module.parameters(),
        lr=0.001,
        loss_scaling=1000,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
    )
    return engine.modelled_module(module, ladder.micro_batch(TYPES[image_type]), options, optimizer)
