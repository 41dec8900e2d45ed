"""A data set that is slow on purpose, to watch what waits for what."""

from __future__ import annotations

import time
from typing import Tuple

from torch import Tensor
from torch.utils.data import Dataset

from ipu_course.datasets.colour_images import ColourImages


class SlowImages(Dataset[Tuple[Tensor, Tensor]]):
    """The items of ``images``, each after a sleep of ``milliseconds``: no work, so any machine is as slow.

    Raises ``ValueError`` for times below 0 or above a second.
    """

    def __init__(self, images: ColourImages, milliseconds: float) -> None:
        if not 0 <= milliseconds <= 1000:
            raise ValueError(f"an item takes 0 to 1,000 ms, not {milliseconds}")
        self.images = images
        self.milliseconds = milliseconds

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.milliseconds / 1000)
        return self.images[index]
