"""Training a small classifier of digits for a few epochs, and its test accuracy: a trial of some setting."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course.datasets import ImageDataset, mnist
from ipu_course.loops import test_accuracy

IMAGES = 1_600
EPOCHS = 4


class Trial(NamedTuple):
    """Mean cross-entropy of each epoch, and the percentage of right answers on the test images."""

    losses: list[float]
    accuracy: float

    @property
    def finite(self) -> bool:
        """Whether all losses are numbers."""
        return all(math.isfinite(loss) for loss in self.losses)


def try_out(
    training_model: poptorch.PoplarExecutor, network: nn.Module, data: torch.dtype, images_per_call: int
) -> Trial:
    """Train ``network`` through ``training_model``, which wraps it, on images of type ``data``; then test it.

    The network gives logits, and with labels (logits, what to minimise); ``training_model`` returns all of them
    and takes ``images_per_call`` images. The losses reported are the cross-entropy of the logits in float32,
    whatever is minimised, so that trials can be compared.
    """
    training_set, test_set = _digits()
    images, labels = training_set.images.to(data), training_set.labels
    losses = []
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        calls = order[: len(order) // images_per_call * images_per_call].split(images_per_call)
        losses.append(_mean_loss(training_model, [(images[rows], labels[rows]) for rows in calls]))
    training_model.detachFromDevice()
    options = poptorch.Options().showCompilationProgressBar(False)
    inference_model = poptorch.inferenceModel(network.eval(), options)
    accuracy = test_accuracy(inference_model, [(test_set.images.to(data), test_set.labels)])
    inference_model.detachFromDevice()
    return Trial(losses, accuracy)


@lru_cache(maxsize=1)
def _digits() -> tuple[ImageDataset, ImageDataset]:
    """The images to train and to test on, read once."""
    return mnist(train=True, images=IMAGES), mnist(train=False)


def _mean_loss(training_model: poptorch.PoplarExecutor, calls: list[tuple[Tensor, Tensor]]) -> float:
    losses = [F.cross_entropy(training_model(images, labels)[0].float(), labels).item() for images, labels in calls]
    return sum(losses) / len(losses)
