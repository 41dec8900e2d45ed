"""What a transform of images costs this machine's processor, measured."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch

from ipu_course.datasets.cifar10_pictures import StoredPictures
from ipu_course.datasets.colour_images import colour_shapes

IMAGES = 256
PASSES = 3


def milliseconds_per_image(transform: Callable[[Any], torch.Tensor]) -> float:
    """Milliseconds that one process needs for one image: ``transform`` of a PIL image of 32 x 32, and batching.

    The median of a few passes over the synthetic shapes; a first one is not counted.
    """
    shapes = colour_shapes(train=True, images=IMAGES)
    pictures = StoredPictures(shapes.pixels.permute(0, 2, 3, 1).numpy(), shapes.labels.numpy(), "", transform)
    loader = torch.utils.data.DataLoader(pictures, batch_size=64)
    times = [_pass_seconds(loader) for _ in range(1 + PASSES)]
    return 1000 * statistics.median(times[1:]) / IMAGES


def _pass_seconds(loader: Any) -> float:
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start
