"""The ways to cut a dimension into parts for tiles: only those that give different part sizes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ipu_model.cost.matrix_vertices import Array, Mask


@lru_cache(maxsize=4096)
def distinct(length: int, most: int) -> Array:
    """Return the numbers of parts, at most `most`, that cut `length` into parts of different sizes.

    For each size of the largest part, the smallest number of parts that reaches it, in ascending order: about
    2 sqrt(length) numbers instead of `length`.
    """
    counts = np.arange(1, max(1, min(length, most)) + 1, dtype=np.float64)
    sizes = np.unique(np.ceil(length / counts))
    parts = np.unique(np.ceil(length / sizes))
    parts.flags.writeable = False
    return parts


def grid(*axes: Array) -> list[Array]:
    """Return the coordinates of every combination of the values of `axes`, one flat array for each axis."""
    return [mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")]


def within(product: Array, tiles: int, share: float) -> Mask:
    """Select combinations of at most `tiles` tiles, and no less than a share of the most that one has."""
    allowed = product <= tiles
    busiest = float(product[allowed].max())
    return allowed & (product >= busiest * share)
