"""The pictures that this lesson loads, as the workshop's program loads CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import poptorch
from ipu_course import engine
from ipu_course.datasets.colour_images import colour_shapes
from ipu_course.programs.train.cifar10 import StoredPictures
from ipu_course.programs.train.loading import host_transform
from ipu_course.programs.train.settings import TrainSettings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork

MEASUREMENTS = 3
Transform = Callable[[Any], Any]


def pictures(transform: Transform | None = None, images: int = 256) -> StoredPictures:
    """Return synthetic PIL pictures [32 x 32] with their labels, each sent through ``transform`` when it is loaded."""
    shapes = colour_shapes(train=True, images=images)
    return StoredPictures(shapes.pixels.permute(0, 2, 3, 1).numpy(), shapes.labels.numpy(), "", transform)


def workshop_loader(eight_bit_io: bool) -> poptorch.DataLoader:
    """Return a loader of such pictures with the workshop's transform: to bytes, or to normalised fp16 numbers."""
    transform = host_transform(TrainSettings(precision="16.16", eight_bit_io=eight_bit_io))
    return poptorch.DataLoader(poptorch.Options(), pictures(transform), batch_size=64)


def measured_host(eight_bit_io: bool) -> HostWork:
    """Return what this machine needs to load the workshop's images: the fastest of three measurements.

    Other programs on the machine can only slow a measurement down.
    """
    measured = [engine.time_loader(workshop_loader(eight_bit_io)) for _ in range(MEASUREMENTS)]
    return min(measured, key=lambda host: float(host.seconds_per_sample))
