"""MNIST for the lessons: torchvision's when the learner has it or asks for it, else the bundled digits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from ipu_course.datasets.digits import (
    AUGMENTATION_SEED,
    EPOCH_IMAGES,
    digits_for_testing,
    digits_for_training,
)
from ipu_course.datasets.images import ImageDataset
from ipu_course.errors import DataError

DOWNLOAD_FOLDER = "mnist_data"
_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

PathLike = Union[str, "os.PathLike[str]"]


def mnist(
    train: bool,
    root: PathLike | None = None,
    download: bool = False,
    *,
    images: int | None = None,
    seed: int = AUGMENTATION_SEED,
) -> ImageDataset:
    """Handwritten digits: items are (image [1, 28, 28] float32 normalised, label [] int64).

    torchvision's MNIST when it is present under ``root`` or when ``download`` asks for it (into ``root``,
    else into ``mnist_data``); otherwise the digits bundled with the course, whose training part is extended
    to an epoch of 20,000 images with the augmentation ``seed``. Without ``root`` and ``download`` it is
    always the bundled digits, so that a notebook gives the same figures everywhere. The result's
    ``description`` says which it is. ``images`` sets the length of a training epoch: the bundled
    digits are extended to it, of MNIST the first ones are taken.

    Raises ``DataError`` when data are missing, damaged or not to be had, ``ValueError`` when ``images`` does
    not fit.
    """
    if images is not None and not train:
        raise ValueError("images sets the length of a training epoch: the test part is always whole")
    if download or (root is not None and _is_present(root)):
        return _torchvision_mnist(train, DOWNLOAD_FOLDER if root is None else root, download, images)
    return digits_for_training(EPOCH_IMAGES if images is None else images, seed) if train else digits_for_testing()


def _is_present(root: PathLike) -> bool:
    raw = Path(root) / "MNIST" / "raw"
    return all((raw / name).is_file() for name in _MNIST_FILES)


def _torchvision_mnist(train: bool, root: PathLike, download: bool, images: int | None) -> ImageDataset:
    try:
        from torchvision.datasets import MNIST
    except ImportError as problem:
        raise DataError(
            "MNIST is read with torchvision, which is not installed. Install it, or leave out the data "
            "folder and the download: then the bundled digits are used."
        ) from problem
    try:
        whole = MNIST(os.fspath(root), train=train, download=download)
    except (OSError, RuntimeError, ValueError) as problem:
        raise DataError(
            f"MNIST could not be {'downloaded' if download else 'read'} ({problem}). Without the download "
            "and the data folder the bundled digits are used."
        ) from problem
    count = len(whole.data) if images is None else images
    if not 0 < count <= len(whole.data):
        raise ValueError(f"{count} images asked for, but MNIST has {len(whole.data)} training images")
    part = "training" if train else "test"
    description = f"MNIST (torchvision), {count} {part} images"
    return ImageDataset(whole.data[:count], whole.targets[:count], description)
