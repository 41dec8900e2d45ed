"""Colour pictures with labels, as the CIFAR-10 programs load them: one at a time, transformed on the way."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import numpy as np
from torch.utils.data import Dataset

from ipu_course.datasets.cifar10_shapes import CLASSES, FIRST_TEST_SEED, FIRST_TRAINING_SEED, draw

Transform = Optional[Callable[[Any], Any]]


class PictureDataset(Dataset[Tuple[Any, int]]):
    """Pictures of 32 x 32 pixels: item i is (transform(picture), label).

    The picture is a PIL image in RGB, as torchvision's CIFAR-10 gives it, and without ``transform`` it is
    handed out as it is. ``description`` says in one line what the data are.
    """

    def __init__(self, description: str, transform: Transform = None) -> None:
        self.description = description
        self.transform = transform

    def __len__(self) -> int:
        raise NotImplementedError

    def pixels_and_label(self, index: int) -> tuple[Any, int]:
        """The picture [32, 32, 3] uint8 and its label 0 to 9. Raises ``IndexError`` beyond the last one."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image  # comes with torchvision, which only the CIFAR-10 programs need

        pixels, label = self.pixels_and_label(index)
        picture = Image.fromarray(pixels)
        return (picture if self.transform is None else self.transform(picture)), label


class StoredPictures(PictureDataset):
    """Pictures held in memory: ``pixels`` [N, 32, 32, 3] uint8 with N ``labels``."""

    def __init__(self, pixels: Any, labels: Any, description: str, transform: Transform = None) -> None:
        super().__init__(description, transform)
        self.pixels = pixels
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def pixels_and_label(self, index: int) -> tuple[Any, int]:
        """See ``PictureDataset``."""
        return self.pixels[index], int(self.labels[index])


class ShapePictures(PictureDataset):
    """Synthetic shapes, drawn when they are asked for; no picture is in both parts.

    Labels go round: picture i has label i modulo 10, so that every ten neighbours show every class.
    """

    def __init__(self, images: int, train: bool, description: str, transform: Transform = None) -> None:
        super().__init__(description, transform)
        self.images = images
        self.first_seed = FIRST_TRAINING_SEED if train else FIRST_TEST_SEED

    def __len__(self) -> int:
        return self.images

    def pixels_and_label(self, index: int) -> tuple[Any, int]:
        """See ``PictureDataset``."""
        if not 0 <= index < self.images:
            raise IndexError(f"there are {self.images} pictures, none with index {index}")
        label = index % len(CLASSES)
        return draw(label, self.first_seed + index), label
