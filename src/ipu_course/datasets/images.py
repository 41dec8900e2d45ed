"""Images and labels held in memory."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

MNIST_MEAN = 0.1307
MNIST_STD = 0.3081


def normalise(pixels: Tensor) -> Tensor:
    """Turn uint8 pixels 0..255 into normalised float32, as torchvision's ToTensor and Normalize do."""
    return pixels.to(torch.float32).div_(255).sub_(MNIST_MEAN).div_(MNIST_STD)


class ImageDataset(Dataset[Tuple[Tensor, Tensor]]):
    """Grey images with labels: item i is (image [1, H, W] float32 normalised, label [] int64).

    ``pixels`` is [N, H, W] uint8, ``labels`` [N]; ``description`` says in one line what the data are.
    Raises ``ValueError`` when shapes or dtype do not fit.
    """

    def __init__(self, pixels: Tensor, labels: Tensor, description: str) -> None:
        if pixels.dim() != 3 or pixels.dtype != torch.uint8:
            raise ValueError(f"pixels must be [N, H, W] uint8, not {list(pixels.shape)} {pixels.dtype}")
        if labels.shape != pixels.shape[:1]:
            raise ValueError(f"{len(pixels)} images need labels [{len(pixels)}], not {list(labels.shape)}")
        self.pixels = pixels
        self.images = normalise(pixels).unsqueeze(1)
        self.labels = labels.to(torch.int64)
        self.description = description

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain bytes, a quarter of the floats: no shared memory, which containers keep small, is needed.
        return _restore, (self.pixels.numpy(), self.labels.numpy(), self.description)


def _restore(pixels: Any, labels: Any, description: str) -> ImageDataset:
    return ImageDataset(torch.from_numpy(pixels), torch.from_numpy(labels), description)
