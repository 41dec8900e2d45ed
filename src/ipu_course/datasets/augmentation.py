"""Seeded small changes of images: shift, rotation and scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Ranges:
    """How far an image may change: each change is drawn evenly between minus and plus its range."""

    rotation_degrees: float = 12.0
    scale: float = 1.1
    """Largest factor of enlargement; its inverse is the smallest."""
    shift_pixels: float = 2.0


def extend(images: Tensor, total: int, seed: int, ranges: Ranges | None = None) -> tuple[Tensor, Tensor]:
    """Extend N images [N, H, W] uint8 to ``total`` by changed copies.

    Gives the pixels [total, H, W] uint8 and for each the index of its original [total] int64. The originals
    come first and unchanged; after them every round of N holds each original once more, in a new order. A
    smaller ``total`` gives the beginning of a larger one. Raises ``ValueError`` when ``total`` is below N.
    """
    count = len(images)
    if total < count:
        raise ValueError(f"{total} images asked for, but the {count} originals alone are more")
    # RandomState, not Generator or torch: NumPy promises that its streams never change.
    random = np.random.RandomState(seed)
    pixels, originals = [images], [torch.arange(count)]
    for _ in range(math.ceil(total / count) - 1):
        order = torch.from_numpy(random.permutation(count).astype(np.int64))
        draws = torch.from_numpy(random.uniform(-1.0, 1.0, size=(count, 4)).astype(np.float32))
        pixels.append(_change(images[order], draws, ranges or Ranges()))
        originals.append(order)
    return torch.cat(pixels)[:total], torch.cat(originals)[:total]


def _change(images: Tensor, draws: Tensor, ranges: Ranges) -> Tensor:
    """Rotate, scale and shift images [N, H, W] by draws [N, 4] between -1 and 1."""
    batch = images.unsqueeze(1).to(torch.float32)
    grid = F.affine_grid(_maps(draws, images.shape[-1], ranges), list(batch.shape), align_corners=False)
    changed = F.grid_sample(batch, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return changed.round_().clamp_(0, 255).to(torch.uint8).squeeze(1)


def _maps(draws: Tensor, width: int, ranges: Ranges) -> Tensor:
    """Affine maps [N, 2, 3] from the changed image to the original, in units of half a width."""
    angle = draws[:, 0] * math.radians(ranges.rotation_degrees)
    shrink = torch.exp(-draws[:, 1] * math.log(ranges.scale))
    shift = -draws[:, 2:] * (2 * ranges.shift_pixels / width)
    cosine, sine = shrink * angle.cos(), shrink * angle.sin()
    rows = [torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)]
    return torch.stack(rows, 1)
