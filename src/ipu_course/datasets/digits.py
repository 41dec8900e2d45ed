"""The handwritten digits bundled with the course, in MNIST's format."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ipu_course.data_folder import data_file
from ipu_course.datasets.augmentation import extend
from ipu_course.datasets.images import ImageDataset
from ipu_course.errors import DataError

DIGITS_FILE = "digits.npz"
SIZE = (28, 28)
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
        # No pickles are read: without allow_pickle numpy takes plain arrays only.
        with np.load(path) as archive:
            images, labels = archive[part + "_images"], archive[part + "_labels"]
        if (images.dtype, images.shape[1:], labels.dtype.kind, labels.shape) != (np.uint8, SIZE, "u", images.shape[:1]):
            raise ValueError(f"its {part} arrays are {images.dtype} {images.shape} and {labels.dtype} {labels.shape}")
        return {part + "_images": images, part + "_labels": labels}
    except Exception as problem:  # what a damaged archive leads to: errors of zip, zlib, numpy, memory
        raise DataError(
            f"The data file {DIGITS_FILE!r} is damaged ({problem}). Fetch it again with "
            "'git checkout data/digits.npz', or make it with 'python data/make_digits.py'."
        ) from problem
