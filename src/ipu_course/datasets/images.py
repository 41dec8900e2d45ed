"""Images and labels held in memory."""

from __future__ import annotations

from typing import Any, Tuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

MNIST_MEAN = 0.1307
MNIST_STD = 0.3081


def normalise(pixels: Tensor, mean: float = MNIST_MEAN, std: float = MNIST_STD) -> Tensor:
    """Turn uint8 pixels 0..255 into normalised float32, as torchvision's ToTensor and Normalize do."""
    return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


class StoredImages(Dataset[Tuple[Tensor, Tensor]]):
    """Images with labels: item i is (image, label [] int64); a subclass says what it makes of the pixels.

    ``pixels`` is uint8, ``labels`` [N]; ``description`` says in one line what the data are. Raises ``ValueError``
    when shapes or dtype do not fit.
    """

    layout = "[N, H, W]"

    def __init__(self, pixels: Tensor, labels: Tensor, description: str) -> None:
        if pixels.dim() != len(self.layout.split(",")) or pixels.dtype != torch.uint8:
            raise ValueError(f"pixels must be {self.layout} uint8, not {list(pixels.shape)} {pixels.dtype}")
        if labels.shape != pixels.shape[:1]:
            raise ValueError(f"{len(pixels)} images need labels [{len(pixels)}], not {list(labels.shape)}")
        self.pixels = pixels
        self.images = self.images_of(pixels)
        self.labels = labels.to(torch.int64)
        self.description = description

    def images_of(self, pixels: Tensor) -> Tensor:
        """Return the images that the pixels are handed out as."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain bytes, a quarter of the floats: no shared memory, which containers keep small, is needed.
        return _restore, (type(self), self.pixels.numpy(), self.labels.numpy(), self.description)


Images = TypeVar("Images", bound=StoredImages)


def _restore(kind: type[Images], pixels: Any, labels: Any, description: str) -> Images:
    return kind(torch.from_numpy(pixels), torch.from_numpy(labels), description)


class ImageDataset(StoredImages):
    """Grey images, ``pixels`` [N, H, W]: item i is (image [1, H, W] float32 normalised, label [] int64)."""

    def images_of(self, pixels: Tensor) -> Tensor:
        """Return the images [N, 1, H, W] of pixels [N, H, W]."""
        return normalise(pixels).unsqueeze(1)
