"""The handwritten digits bundled with the course, in MNIST's format."""

from __future__ import annotations

import zipfile
import zlib
from typing import Any

import numpy as np
import torch

from ipu_course.data_folder import data_file
from ipu_course.datasets.augmentation import extend
from ipu_course.datasets.images import ImageDataset
from ipu_course.errors import DataError

DIGITS_FILE = "digits.npz"
EPOCH_IMAGES = 20_000
AUGMENTATION_SEED = 0


def digits_for_training(images: int = EPOCH_IMAGES, seed: int = AUGMENTATION_SEED) -> ImageDataset:
    """The training part: 997 originals, extended to ``images`` by small seeded shifts, rotations, scalings.

    Raises ``DataError`` when the file is missing or damaged, ``ValueError`` when ``images`` is below 997.
    """
    arrays = _read("train")
    labels = torch.from_numpy(arrays["train_labels"])
    pixels, originals = extend(torch.from_numpy(arrays["train_images"]), images, seed)
    return ImageDataset(
        pixels,
        labels[originals],
        f"bundled handwritten digits (UCI), {len(pixels)} training images from {len(labels)} originals",
    )


def digits_for_testing() -> ImageDataset:
    """The test part: 800 originals, none of them augmented.

    Raises ``DataError`` when the file is missing or damaged.
    """
    arrays = _read("test")
    pixels = torch.from_numpy(arrays["test_images"])
    return ImageDataset(
        pixels,
        torch.from_numpy(arrays["test_labels"]),
        f"bundled handwritten digits (UCI), {len(pixels)} test images, all originals",
    )


def _read(part: str) -> dict[str, Any]:
    path = data_file(DIGITS_FILE)
    try:
        with np.load(path) as archive:
            return {name: archive[name] for name in (part + "_images", part + "_labels")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise DataError(
            f"The data file {DIGITS_FILE!r} is damaged ({problem}). Fetch it again with "
            "'git checkout data/digits.npz', or make it with 'python data/make_digits.py'."
        ) from problem
