"""How the program loads its images: what the host does with each one, and what that costs here."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, ContextManager

from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

import poptorch
from ipu_course import engine
from ipu_course.models import MEAN, STD
from ipu_course.programs import running
from ipu_course.programs.train.cifar10 import PictureDataset
from ipu_course.programs.train.settings import TrainSettings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork

WARM_UP_BATCHES = 1
MEASURED_BATCHES = 5


def host_transform(settings: TrainSettings) -> transforms.Compose:
    """Return what the host does with each picture: PIL image to tensor [3, S, S].

    With 8-bit I/O the tensor is uint8; otherwise the host converts and normalises it, too.
    """
    steps = [
        transforms.RandomHorizontalFlip(),
        transforms.Resize((settings.image_size, settings.image_size)),
        transforms.PILToTensor(),
    ]
    if not settings.eight_bit_io:
        images = running.dtypes(settings.precision)[0]
        steps += [transforms.ConvertImageDtype(images), transforms.Normalize(MEAN, STD)]
    return transforms.Compose(steps)


def loading(
    settings: TrainSettings, options: poptorch.Options, images: Dataset[Any]
) -> ContextManager[poptorch.DataLoader]:
    """Return a loader of shuffled images for whole calls, whose processes end with the block."""
    order: dict[str, Any] = {"shuffle": True}
    if settings.limit_batches is not None:
        # Every epoch chooses its images anew.
        count = settings.calls_per_epoch(len(images)) * settings.images_per_call  # type: ignore[arg-type]
        order = {"sampler": RandomSampler(images, num_samples=count)}  # type: ignore[arg-type]
    asynchronous, workers = settings.async_dataloader, settings.num_workers
    return running.loading(options, images, settings.batch_size, asynchronous, num_workers=workers, **order)


def measured_seconds_per_image(settings: TrainSettings, images: Dataset[Any]) -> float:
    """Return the seconds that this process needs to load one image, measured over some micro-batches."""
    batches = iter(DataLoader(images, batch_size=settings.batch_size, shuffle=True, drop_last=True))
    for _ in islice(batches, WARM_UP_BATCHES):
        pass
    loaded, start = 0, time.perf_counter()
    for pixels, _ in islice(batches, MEASURED_BATCHES):
        loaded += len(pixels)
    return (time.perf_counter() - start) / loaded


def measured_host(settings: TrainSettings, images: PictureDataset) -> HostWork | None:
    """Return what this machine's loader costs, measured now; ``None`` without an IPU Model.

    What the training loop does for each call besides is not part of it.
    """
    seconds = measured_seconds_per_image(settings, images)
    source = f"measured here: {seconds * 1000:.2f} ms an image ({images.description})"
    return engine.host_work(seconds, 0.0, settings.async_dataloader, settings.num_workers, source)
