"""Small colour images in memory, for what the lessons train for real."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ipu_course.datasets.cifar10_shapes import shape
from ipu_course.datasets.images import StoredImages, normalise

MEAN, STD = 0.5, 0.25  # of the synthetic shapes, roughly: they fill the range evenly


class ColourImages(StoredImages):
    """Colour images, ``pixels`` [N, 3, H, W]: item i is (image [3, H, W] float32 of about -2 to 2, label [] int64)."""

    layout = "[N, 3, H, W]"

    def images_of(self, pixels: Tensor) -> Tensor:
        """Return the images, normalised to a mean of about 0 and a deviation of about 1."""
        return normalise(pixels, MEAN, STD)

    def as_bytes(self) -> ColourImages:
        """Return the same images, handed out as uint8."""
        return ColourBytes(self.pixels, self.labels, self.description)


class ColourBytes(ColourImages):
    """Colour images that are handed out as they are stored: item i is (image [3, H, W] uint8, label [] int64)."""

    def images_of(self, pixels: Tensor) -> Tensor:
        """Return the pixels."""
        return pixels


def colour_shapes(train: bool, images: int) -> ColourImages:
    """Return the first ``images`` of the synthetic shapes (0.2 ms each to draw); labels go round the ten classes.

    Raises ``ValueError`` for less than one image.
    """
    if images < 1:
        raise ValueError(f"colour_shapes gives at least 1 image, not {images}")
    pixels, labels = zip(*(shape(train, index) for index in range(images)))
    part = "training" if train else "test"
    description = f"synthetic shapes in CIFAR-10's format: {images:,} {part} images of ten classes, made from a seed"
    return ColourImages(
        torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels), description
    )
