"""Small colour images in memory, for what the lessons train for real."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ipu_course.datasets.cifar10_shapes import CLASSES, FIRST_TEST_SEED, FIRST_TRAINING_SEED, draw

MEAN, STD = 0.5, 0.25  # of the synthetic shapes, roughly: they fill the range evenly


class ColourImages(Dataset[Tuple[Tensor, Tensor]]):
    """Colour images with labels: item i is (image [3, 32, 32], label [] int64).

    ``pixels`` is [N, 3, 32, 32] uint8, ``labels`` [N]. Images are float32, normalised to about -2 to 2, or
    uint8 as they are with ``as_bytes``. ``description`` says in one line what the data are. Raises
    ``ValueError`` when shapes or dtype do not fit.
    """

    def __init__(self, pixels: Tensor, labels: Tensor, description: str, as_bytes: bool = False) -> None:
        if pixels.dim() != 4 or pixels.dtype != torch.uint8:
            raise ValueError(f"pixels must be [N, 3, H, W] uint8, not {list(pixels.shape)} {pixels.dtype}")
        if labels.shape != pixels.shape[:1]:
            raise ValueError(f"{len(pixels)} images need labels [{len(pixels)}], not {list(labels.shape)}")
        self.pixels = pixels
        self.labels = labels.to(torch.int64)
        self.description = description
        self.hands_out_bytes = as_bytes
        self.images = pixels if as_bytes else normalised(pixels)

    def as_bytes(self) -> ColourImages:
        """The same images, handed out as uint8."""
        return ColourImages(self.pixels, self.labels, self.description, as_bytes=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain bytes, a quarter of the floats: no shared memory, which containers keep small, is needed.
        return _restore, (self.pixels.numpy(), self.labels.numpy(), self.description, self.hands_out_bytes)


def normalised(pixels: Tensor) -> Tensor:
    """Pixels 0..255 of uint8 as float32 of mean about 0 and deviation about 1."""
    return pixels.to(torch.float32).div_(255).sub_(MEAN).div_(STD)


def colour_shapes(train: bool, images: int) -> ColourImages:
    """The first ``images`` of the synthetic shapes (0.2 ms each to draw); labels go round the ten classes.

    Raises ``ValueError`` for less than one image.
    """
    if images < 1:
        raise ValueError(f"colour_shapes gives at least 1 image, not {images}")
    first = FIRST_TRAINING_SEED if train else FIRST_TEST_SEED
    labels = [index % len(CLASSES) for index in range(images)]
    pixels = np.stack([draw(label, first + index) for index, label in enumerate(labels)])
    part = "training" if train else "test"
    description = f"synthetic shapes in CIFAR-10's format: {images:,} {part} images of ten classes, made from a seed"
    return ColourImages(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels), description)


def _restore(pixels: Any, labels: Any, description: str, as_bytes: bool) -> ColourImages:
    return ColourImages(torch.from_numpy(pixels), torch.from_numpy(labels), description, as_bytes)
