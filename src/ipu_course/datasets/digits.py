"""Handwritten digits: those bundled with the course in MNIST's format, or MNIST where the learner asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ipu_course.course_files import bring_back
from ipu_course.data_folder import data_file
from ipu_course.datasets.augmentation import extend
from ipu_course.datasets.images import ImageDataset
from ipu_course.datasets.torchvision_files import PathLike, from_torchvision
from ipu_course.errors import DataError

DIGITS_FILE = "digits.npz"
SIZE = (28, 28)
EPOCH_IMAGES = 20_000
AUGMENTATION_SEED = 0
DOWNLOAD_FOLDER = "mnist_data"
_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def mnist(
    train: bool,
    root: PathLike | None = None,
    download: bool = False,
    *,
    images: int | None = None,
    seed: int = AUGMENTATION_SEED,
) -> ImageDataset:
    """Return handwritten digits: items are (image [1, 28, 28] float32 normalised, label [] int64).

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
    return _training_digits(EPOCH_IMAGES if images is None else images, seed) if train else _test_digits()


def _is_present(root: PathLike) -> bool:
    raw = Path(root) / "MNIST" / "raw"
    return all((raw / name).is_file() for name in _MNIST_FILES)


def _torchvision_mnist(train: bool, root: PathLike, download: bool, images: int | None) -> ImageDataset:
    instead = "leave out the data folder and the download: then the bundled digits are used"
    whole = from_torchvision("MNIST", root, train, download, instead)
    count = len(whole.data) if images is None else images
    if not 0 < count <= len(whole.data):
        raise ValueError(f"{count} images asked for, but MNIST has {len(whole.data)} training images")
    description = f"MNIST (torchvision), {count} {'training' if train else 'test'} images"
    return ImageDataset(whole.data[:count], whole.targets[:count], description)


def _training_digits(images: int, seed: int) -> ImageDataset:
    """Return the 997 originals for training, extended to ``images`` by small seeded shifts, rotations, scalings."""
    originals, labels = _bundled("train")
    pixels, places = extend(originals, images, seed)
    content = f"{len(pixels)} training images from {len(labels)} originals"
    return ImageDataset(pixels, labels[places], f"bundled handwritten digits (UCI), {content}")


def _test_digits() -> ImageDataset:
    """Return the 800 originals for testing, none of them augmented."""
    pixels, labels = _bundled("test")
    return ImageDataset(pixels, labels, f"bundled handwritten digits (UCI), {len(pixels)} test images, all originals")


def _bundled(part: str) -> tuple[Tensor, Tensor]:
    """Return pixels [N, 28, 28] uint8 and labels [N]. Raises ``DataError`` when the file is missing or damaged."""
    path = data_file(DIGITS_FILE)
    try:
        # No pickles are read: without allow_pickle numpy takes plain arrays only.
        with np.load(path) as archive:
            images, labels = archive[part + "_images"], archive[part + "_labels"]
        if (images.dtype, images.shape[1:], labels.dtype.kind, labels.shape) != (np.uint8, SIZE, "u", images.shape[:1]):
            raise ValueError(f"its {part} arrays are {images.dtype} {images.shape} and {labels.dtype} {labels.shape}")
        return torch.from_numpy(images), torch.from_numpy(labels)
    except Exception as problem:  # what a damaged archive leads to: errors of zip, zlib, numpy, memory
        raise DataError(
            f"The data file {DIGITS_FILE!r} is damaged ({problem}): {bring_back(f'data/{DIGITS_FILE}')}."
        ) from problem
