"""Make ``digits.npz``: the UCI handwritten digits in MNIST's format, split into train and test.

Needs NumPy and scikit-learn (which ships the digits). Everything is integer arithmetic with one fixed seed,
so that every machine makes the same arrays. See ``README.md`` beside this file.

    python data/make_digits.py            write digits.npz
    python data/make_digits.py --check    compare the shipped digits.npz with a fresh one
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Integers = NDArray[np.int64]
Arrays = Dict[str, NDArray[Any]]

DIGITS_FILE = Path(__file__).resolve().parent / "digits.npz"
SOURCE_SIZE = 8
BOX_SIZE = 20
IMAGE_SIZE = 28
TEST_IMAGES = 800
SPLIT_SEED = 1998
TENTHS = 10


def enlarging_weights() -> Integers:
    """Weights [20, 8] of the bicubic (Catmull-Rom) enlargement from 8 to 20 samples, in units of 1/2000.

    Output sample i lies at 0.4 i - 0.3 of the source, so its fraction is a whole number of tenths and every
    weight a whole number of 1/2000. Samples outside the source repeat the edge.
    """
    weights = np.zeros((BOX_SIZE, SOURCE_SIZE), dtype=np.int64)
    for row in range(BOX_SIZE):
        base, t = divmod(4 * row - 3, TENTHS)
        taps = (
            -(t**3) + 20 * t**2 - 100 * t,
            3 * t**3 - 50 * t**2 + 2000,
            -3 * t**3 + 40 * t**2 + 100 * t,
            t**3 - 10 * t**2,
        )
        for column, tap in zip(range(base - 1, base + 3), taps):
            weights[row, min(max(column, 0), SOURCE_SIZE - 1)] += tap
    return weights


def enlarge(sources: Integers) -> Integers:
    """Enlarge images [N, 8, 8] to [N, 20, 20] and stretch each one's contrast to 0..255."""
    weights = enlarging_weights()
    enlarged = np.maximum(np.einsum("ri,nij,cj->nrc", weights, sources, weights), 0)
    brightest = enlarged.max(axis=(1, 2), keepdims=True)
    stretched: Integers = (2 * 255 * enlarged + brightest) // (2 * brightest)
    return stretched


def top_left(mass: Integers) -> Integers:
    """Where a box with row (or column) masses [N, 20] starts, so that its centre of mass is in the middle."""
    total = mass.sum(axis=1)
    # Twice the centre of sample k is 2k + 1: the factor two keeps the arithmetic in integers.
    twice_moment = (mass * (2 * np.arange(BOX_SIZE) + 1)).sum(axis=1)
    start: Integers = (IMAGE_SIZE * total - twice_moment + total) // (2 * total)
    return np.clip(start, 0, IMAGE_SIZE - BOX_SIZE)


def to_mnist_format(sources: Integers) -> Images:
    """Bring images [N, 8, 8] with values 0..16 to MNIST's format: [N, 28, 28] uint8, centred by mass."""
    boxes = enlarge(sources)
    tops, lefts = top_left(boxes.sum(axis=2)), top_left(boxes.sum(axis=1))
    images = np.zeros((len(boxes), IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
    for image, box, top, left in zip(images, boxes, tops, lefts):
        image[top : top + BOX_SIZE, left : left + BOX_SIZE] = box
    return images


def quotas(counts: Integers, total: int) -> Integers:
    """Share ``total`` places in proportion to ``counts``: largest remainder, ties to the lower class."""
    shares, remainders = np.divmod(counts * total, counts.sum())
    extra = np.argsort(-remainders, kind="stable")[: total - shares.sum()]
    shares[extra] += 1
    return shares


def choose_test(labels: Integers) -> Integers:
    """Indices of the test originals: stratified by class, drawn with one fixed seed, in ascending order."""
    # RandomState, not Generator: NumPy promises that its streams never change.
    random = np.random.RandomState(SPLIT_SEED)
    shares = quotas(np.bincount(labels), TEST_IMAGES)
    chosen: list[Integers] = []
    for digit, share in enumerate(shares):
        chosen.append(random.permutation(np.flatnonzero(labels == digit))[:share])
    return np.sort(np.concatenate(chosen))


def make_arrays() -> Arrays:
    """All arrays of ``digits.npz`` by name, made from the digits that scikit-learn ships."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # scikit-learn ships no type hints

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    images = to_mnist_format(digits.images.astype(np.int64))
    test = choose_test(labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    arrays: Arrays = {}
    for part, originals in (("train", train), ("test", test)):
        arrays[part + "_images"] = images[originals]
        arrays[part + "_labels"] = labels[originals].astype(np.uint8)
        arrays[part + "_originals"] = originals.astype("<i2")
    return arrays


def checksum(arrays: Arrays) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of the arrays: independent of the compression library."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def load_arrays(path: Path) -> Arrays:
    """Read the arrays of an existing ``digits.npz``."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def main(arguments: list[str] | None = None) -> int:
    """Write ``digits.npz``, or compare it with ``--check`` (exit code 1 when it differs)."""
    parser = argparse.ArgumentParser(description="Make digits.npz from scikit-learn's copy of the UCI digits.")
    parser.add_argument("--check", action="store_true", help="compare the shipped file, write nothing")
    check = parser.parse_args(arguments).check
    arrays = make_arrays()
    fresh = checksum(arrays)
    if check:
        same = checksum(load_arrays(DIGITS_FILE)) == fresh
        print(
            "digits.npz",
            "is as made by this script" if same else "differs from what this script makes",
            fresh,
        )
        return 0 if same else 1
    np.savez_compressed(DIGITS_FILE, **arrays)  # type: ignore[arg-type]  # NumPy types its one bool keyword too
    print("digits.npz written, checksum of its arrays", fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
