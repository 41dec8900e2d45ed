"""CIFAR-10 for the lessons: torchvision's where the learner has it, else synthetic shapes in its format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from ipu_course.data_folder import data_file
from ipu_course.datasets.cifar10_pictures import PictureDataset, ShapePictures, StoredPictures, Transform
from ipu_course.datasets.cifar10_shapes import TEST_IMAGES, TRAINING_IMAGES
from ipu_course.errors import DataError

DOWNLOAD_FOLDER = "cifar10_data"
AUTO, CIFAR10, SHAPES = "auto", "cifar10", "shapes"
SOURCES = (AUTO, CIFAR10, SHAPES)
_FOLDER = "cifar-10-batches-py"
_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

PathLike = Union[str, "os.PathLike[str]"]


def cifar10(
    train: bool,
    root: PathLike = DOWNLOAD_FOLDER,
    download: bool = False,
    *,
    source: str = AUTO,
    transform: Transform = None,
) -> PictureDataset:
    """Colour pictures of 32 x 32 pixels in ten classes: items are (transform(PIL image), label).

    ``source`` is "cifar10", "shapes", or "auto": CIFAR-10 when torchvision's files are under ``root`` or in
    the course's data folder, else synthetic shapes of CIFAR-10's format and size (50,000 for training, 10,000
    for testing). Nothing is fetched unless ``download`` asks for it. The result's ``description`` says which
    it is.

    Raises ``DataError`` when CIFAR-10 is asked for and is missing, damaged or not to be had.
    """
    if source not in SOURCES:
        raise ValueError(f"source is one of {', '.join(SOURCES)}, not {source!r}")
    if source != SHAPES:
        if download:
            return _torchvision_cifar10(train, root, download=True, transform=transform)
        found = _folder_with_files(root)
        if found is not None:
            return _torchvision_cifar10(train, found, download=False, transform=transform)
        if source == CIFAR10:
            raise DataError(
                f"CIFAR-10 was asked for, but {os.fspath(root)!r} has no complete folder {_FOLDER!r}. Name the "
                "folder it is in, ask for the download (170 MB), or take the synthetic shapes instead."
            )
    return _shapes(train, transform)


def _folder_with_files(root: PathLike) -> Path | None:
    """The folder that holds torchvision's files: ``root``, else the course's data folder."""
    if all((Path(root) / _FOLDER / name).is_file() for name in _FILES):
        return Path(root)
    try:
        paths = [data_file(f"{_FOLDER}/{name}") for name in _FILES]
    except DataError:
        return None
    return paths[0].parents[1]


def _shapes(train: bool, transform: Transform) -> PictureDataset:
    count, part = (TRAINING_IMAGES, "training") if train else (TEST_IMAGES, "test")
    description = f"synthetic shapes, CIFAR-10's format and size: {count} {part} images, generated from a seed"
    return ShapePictures(count, train, description, transform)


def _torchvision_cifar10(train: bool, root: PathLike, download: bool, transform: Transform) -> PictureDataset:
    try:
        from torchvision.datasets import CIFAR10 as TorchvisionCifar10
    except ImportError as problem:
        raise DataError(
            "CIFAR-10 is read with torchvision, which is not installed. Install it, or take the synthetic shapes."
        ) from problem
    try:
        whole = TorchvisionCifar10(os.fspath(root), train=train, download=download)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as problem:
        raise DataError(
            f"CIFAR-10 could not be {'downloaded' if download else 'read'} ({problem}). The synthetic shapes need "
            "neither files nor network."
        ) from problem
    part = "training" if train else "test"
    description = f"CIFAR-10 (torchvision), {len(whole.data)} {part} images"
    return StoredPictures(whole.data, whole.targets, description, transform)
