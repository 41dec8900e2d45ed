"""Training a small classifier of digits for a few epochs, and its test accuracy: a trial of some setting."""

from __future__ import annotations

from typing import List, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course.datasets import mnist
from ipu_course.loops import test_accuracy

IMAGES = 1_600


class Trial(NamedTuple):
    """Mean cross-entropy of each epoch, and the percentage of right answers on the test images."""

    losses: List[float]
    accuracy: float

    @property
    def still_finite(self) -> bool:
        """Whether the last epoch's loss is a number."""
        return bool(torch.tensor(self.losses[-1]).isfinite())


def digit_layers() -> nn.Sequential:
    """Images [N, 1, 28, 28] to logits [N, 10]: two convolutions, two linear layers, the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def try_out(training_model: poptorch.PoplarExecutor, network: nn.Module, data: torch.dtype, epochs: int = 4) -> Trial:
    """Train ``network`` through ``training_model``, which wraps it, on images of type ``data``; then test it.

    The network gives logits, and with labels (logits, what to minimise). The losses reported are the
    cross-entropy of the logits in float32, whatever is minimised, so that trials can be compared.
    """
    training_set, test_set = mnist(train=True, images=IMAGES), mnist(train=False)
    rows = training_model.options.Training.gradient_accumulation * training_model.options.device_iterations * MICRO
    losses = [
        _epoch(training_model, training_set.images.to(data), training_set.labels, rows, epoch)
        for epoch in range(epochs)
    ]
    training_model.detachFromDevice()
    options = poptorch.Options().showCompilationProgressBar(False)
    inference_model = poptorch.inferenceModel(network.eval(), options)
    accuracy = test_accuracy(inference_model, [(test_set.images.to(data), test_set.labels)])
    inference_model.detachFromDevice()
    return Trial(losses, accuracy)
