"""Capture: how long one trace of a large model takes."""

from __future__ import annotations

import torch
import torchvision

import poptorch
from measurements.stepping import WithLoss
from measurements.timing import Row, elapsed


def rows(rounds: int) -> list[Row]:
    """Measure the compilation of ResNet-101, 64 images of 64x64 in fp16: capture, checks and building the replay."""
    model = WithLoss(torchvision.models.resnet101()).half()
    x, y = torch.randn(64, 3, 64, 64).half(), torch.randint(0, 1000, (64,))
    took = [elapsed(lambda: _compile(model, x, y)) for _ in range(3)]
    return [
        Row.seconds("ResNet-101 (64x3x64x64, fp16): first compilation in a process", took[0], at_most=1.5),
        Row("ResNet-101 (64x3x64x64, fp16): later compilations, the fastest", f"{min(took[1:]):.2f} s"),
    ]


def _compile(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    training.compile(x, y)
    training.destroy()
