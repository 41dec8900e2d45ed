"""Synthetic shapes in CIFAR-10's format and size: coloured 32 x 32 images in ten classes, made from a seed.

They stand in for CIFAR-10 where that is not at hand. Nothing of CIFAR-10 is in them.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

SIDE = 32
FIRST_TEST_SEED = 1_000_000  # image i for training has the seed i; those for testing have theirs far behind

# Any: numpy's array types cannot be subscripted at run time with Python 3.8.
Array = Any
Distance = Callable[[Array, Array], Array]

CENTRE_RANGE = 0.3  # of half a side, either way
RADIUS_RANGE = (0.4, 0.7)  # of half a side
LEAST_CONTRAST = 0.6  # distance of the colours of shape and background, where white is sqrt(3) from black
LARGEST_NOISE = 0.2  # either way, where white is 1 and black 0

_rows, _columns = np.mgrid[0:SIDE, 0:SIDE]
_Y: Array = (2 * _rows + 1) / SIDE - 1.0
_X: Array = (2 * _columns + 1) / SIDE - 1.0


def _cross(u: Array, v: Array) -> Array:
    along, across = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(along - 1.0, across - 0.28), np.maximum(across - 1.0, along - 0.28))


def _in_patch(texture: Array, u: Array, v: Array) -> Array:
    """Cut a texture to a disc a little larger than the other shapes."""
    return np.maximum(texture, np.hypot(u, v) - 1.15)


# The distance to a shape's border (of textures: roughly), negative inside, in units of its radius.
SHAPES: dict[str, Distance] = {
    "disc": lambda u, v: np.hypot(u, v) - 0.9,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.8,
    "triangle": lambda u, v: np.maximum(v, np.abs(u) * 0.866 - v * 0.5) - 0.6,
    "cross": _cross,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.78) - 0.2,
    "frame": lambda u, v: np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.7) - 0.18,
    "star": lambda u, v: np.hypot(u, v) - (0.7 + 0.35 * np.cos(5.0 * np.arctan2(v, u))),
    "stripes": lambda u, v: _in_patch(0.3 * np.sin(8.5 * u), u, v),
    "checks": lambda u, v: _in_patch(0.4 * np.sin(5.5 * u) * np.sin(5.5 * v), u, v),
    "dots": lambda u, v: _in_patch(0.25 * (0.8 - np.cos(7.5 * u) - np.cos(7.5 * v)), u, v),
}
CLASSES = tuple(SHAPES)


def shape(train: bool, index: int) -> tuple[Array, int]:
    """Return an image [32, 32, 3] uint8 of one part, and its label: neighbours show one class after the other."""
    label = index % len(CLASSES)
    return draw(label, index if train else FIRST_TEST_SEED + index), label


def draw(label: int, seed: int) -> Array:
    """Draw an image [32, 32, 3] uint8 of the class ``label``: one shape of random place, size, turn and colours.

    The background is a gradient between two colours, and noise lies over all of it. The same arguments give
    the same image.
    """
    # RandomState, not Generator: NumPy promises that its streams never change.
    random = np.random.RandomState(seed)
    u, v, radius = _turned_grid(random)
    distance = SHAPES[CLASSES[label]](u, v)
    # Within half a pixel of the border the two colours blend.
    share = np.clip(0.5 - distance * radius * (SIDE / 2), 0.0, 1.0)[..., None]
    background, colour = _colours(random)
    noise = random.uniform(0.0, LARGEST_NOISE) * random.uniform(-1.0, 1.0, (SIDE, SIDE, 3))
    pixels = background + share * (colour - background) + noise
    return np.clip(pixels * 255.0 + 0.5, 0, 255).astype(np.uint8)


def _turned_grid(random: np.random.RandomState) -> tuple[Array, Array, float]:
    """Return coordinates [32, 32] twice in the shape's own system, and its radius in half sides."""
    x, y = random.uniform(-CENTRE_RANGE, CENTRE_RANGE, 2)
    radius = random.uniform(*RADIUS_RANGE)
    angle = random.uniform(0.0, 2 * np.pi)
    cosine, sine = np.cos(angle) / radius, np.sin(angle) / radius
    right, down = _X - x, _Y - y
    return cosine * right + sine * down, cosine * down - sine * right, float(radius)


def _colours(random: np.random.RandomState) -> tuple[Array, Array]:
    """Return the background [32, 32, 3] and the shape's colour [3], apart from each other; values 0 to 1."""
    while True:
        first, second, colour = random.uniform(0.0, 1.0, (3, 3))
        middle = (first + second) / 2
        if np.sqrt(((colour - middle) ** 2).sum()) > LEAST_CONTRAST:
            break
    x, y = random.uniform(-0.5, 0.5, 2)
    along = np.clip(0.5 + x * _X + y * _Y, 0.0, 1.0)[..., None]
    return first + along * (second - first), colour
