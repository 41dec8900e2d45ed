"""A data set that is slow on purpose, by other times for other batches, to watch what waits for what."""

from __future__ import annotations

import time
from typing import Sequence, Tuple

from torch import Tensor
from torch.utils.data import Dataset

from ipu_course.datasets.colour_images import ColourImages


class SlowImages(Dataset[Tuple[Tensor, Tensor]]):
    """The items of ``images``, with a sleep before the first one of each batch of ``batch_size``.

    Batch n sleeps for ``milliseconds[n]``, and the list starts again after its end. A sleep needs no processor, so
    the batches take these times on every machine. Raises ``ValueError`` for an empty list, and for times below 0 or
    above a second.
    """

    def __init__(self, images: ColourImages, milliseconds: Sequence[float], batch_size: int) -> None:
        if not milliseconds:
            raise ValueError("milliseconds needs at least one time")
        wrong = [each for each in milliseconds if not 0 <= each <= 1000]
        if wrong:
            raise ValueError(f"a batch sleeps for 0 to 1,000 ms, not {wrong[0]}")
        self.images = images
        self.milliseconds = tuple(milliseconds)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        batch, place = divmod(index, self.batch_size)
        if place == 0:
            time.sleep(self.milliseconds[batch % len(self.milliseconds)] / 1000)
        return self.images[index]
