"""The small networks that the lessons train for real, and what goes around any classifier: loss, normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

CLASSES = 10
# ImageNet's mean and standard deviation, which the workshop's program uses for CIFAR-10, too.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class SmallNetwork(nn.Module):
    """Colour images [N, 3, 32, 32] to logits [N, 10]: three convolutions, each with normalisation and pooling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(3, width), *_stage(width, 2 * width), *_stage(2 * width, 4 * width))
        self.head = nn.Linear(4 * width * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))  # type: ignore[no-any-return]  # nn.Module's call is Any


def _stage(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]


class WithLoss(nn.Module):
    """A classifier that gives (logits [N, classes], mean cross-entropy []) with labels [N], and logits without."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.model(images)
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)


class NormaliseOnDevice(nn.Module):
    """Images [N, 3, H, W] uint8 to ``dtype``, normalised: what the host does without 8-bit I/O."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN, dtype=dtype).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD, dtype=dtype).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images.to(self.dtype) / 255 - self.mean) / self.std


class ClassifierWithLoss(nn.Module):
    """A classifier that gives (mean cross-entropy [], logits [N, classes], accuracy in per cent [])."""

    def __init__(self, model: nn.Module, normalise: nn.Module | None = None) -> None:
        super().__init__()
        self.model = model
        self.normalise = normalise

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.normalise is not None:
            images = self.normalise(images)
        logits: Tensor = self.model(images)
        loss = poptorch.identity_loss(F.cross_entropy(logits, labels), reduction="none")
        accuracy = (logits.argmax(1) == labels).float().mean() * 100
        return loss, logits, accuracy


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


class Digits(nn.Module):
    """Images [N, 1, 28, 28] to logits [N, 10]; with labels [N] to (logits, ``loss_weight`` x cross-entropy).

    The loss is computed in float32, whatever the type of the layers.
    """

    def __init__(self, loss_weight: float = 1.0) -> None:
        super().__init__()
        self.layers = digit_layers()
        self.loss_weight = loss_weight

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.layers(images)
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.float(), labels) * self.loss_weight
        return logits, poptorch.identity_loss(loss, reduction="none")
