"""The pictures that the program trains on: CIFAR-10 where the learner has it, else synthetic shapes in its format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

import numpy as np
from torch.utils.data import Dataset

from ipu_course.data_folder import data_file
from ipu_course.datasets.cifar10_shapes import shape
from ipu_course.datasets.torchvision_files import PathLike, from_torchvision
from ipu_course.errors import DataError

DOWNLOAD_FOLDER = "cifar10_data"
AUTO, CIFAR10, SHAPES = "auto", "cifar10", "shapes"
SOURCES = (AUTO, CIFAR10, SHAPES)
TRAINING_IMAGES, TEST_IMAGES = 50_000, 10_000
_FOLDER = "cifar-10-batches-py"
_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

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
        """Return the picture [32, 32, 3] uint8 and its label 0 to 9. Raises ``IndexError`` beyond the last one."""
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
    """Synthetic shapes of CIFAR-10's format and size, drawn when they are asked for; no picture is in both parts."""

    def __init__(self, train: bool, transform: Transform = None) -> None:
        self.train, self.images = train, TRAINING_IMAGES if train else TEST_IMAGES
        content = f"{self.images} {'training' if train else 'test'} images, generated from a seed"
        super().__init__(f"synthetic shapes, CIFAR-10's format and size: {content}", transform)

    def __len__(self) -> int:
        return self.images

    def pixels_and_label(self, index: int) -> tuple[Any, int]:
        """See ``PictureDataset``."""
        if not 0 <= index < self.images:
            raise IndexError(f"there are {self.images} pictures, none with index {index}")
        return shape(self.train, index)


def cifar10(
    train: bool,
    root: PathLike = DOWNLOAD_FOLDER,
    download: bool = False,
    *,
    source: str = AUTO,
    transform: Transform = None,
) -> PictureDataset:
    """Return colour pictures of 32 x 32 pixels in ten classes: items are (transform(PIL image), label).

    ``source`` is "cifar10", "shapes", or "auto": CIFAR-10 when torchvision's files are under ``root`` or in
    the course's data folder, else synthetic shapes of CIFAR-10's format and size (50,000 for training, 10,000
    for testing). Nothing is fetched unless ``download`` asks for it. The result's ``description`` says which
    it is.

    Raises ``DataError`` when CIFAR-10 is asked for and is missing, damaged or not to be had.
    """
    if source not in SOURCES:
        raise ValueError(f"source is one of {', '.join(SOURCES)}, not {source!r}")
    found = Path(root) if download else _folder_with_files(root)
    if source == SHAPES or (source == AUTO and found is None):
        return ShapePictures(train, transform)
    if found is None:
        raise DataError(
            f"CIFAR-10 was asked for, but {os.fspath(root)!r} has no complete folder {_FOLDER!r}. Name the "
            "folder it is in, ask for the download (170 MB), or take the synthetic shapes instead."
        )
    instead = "take the synthetic shapes, which need neither files nor network"
    whole = from_torchvision("CIFAR10", found, train, download, instead)
    description = f"CIFAR-10 (torchvision), {len(whole.data)} {'training' if train else 'test'} images"
    return StoredPictures(whole.data, whole.targets, description, transform)


def _folder_with_files(root: PathLike) -> Path | None:
    """Return the folder that holds torchvision's files: ``root``, else the course's data folder."""
    if all((Path(root) / _FOLDER / name).is_file() for name in _FILES):
        return Path(root)
    try:
        first, *_ = [data_file(f"{_FOLDER}/{name}") for name in _FILES]
    except DataError:
        return None
    return first.parents[1]
