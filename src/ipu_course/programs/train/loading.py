"""How the program loads its images: what the host does with each, and the loader around it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

import poptorch
from ipu_course import engine
from ipu_course.datasets.cifar10_pictures import PictureDataset
from ipu_course.models import MEAN, STD
from ipu_course.programs.train.model import image_dtype
from ipu_course.programs.train.settings import Settings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork

WARM_UP_BATCHES = 1
MEASURED_BATCHES = 5


def host_transform(settings: Settings) -> transforms.Compose:
    """What the host does with each picture: PIL image to tensor [3, S, S].

    With 8-bit I/O the tensor is uint8; otherwise it is converted and normalised here.
    """
    steps = [
        transforms.RandomHorizontalFlip(),
        transforms.Resize((settings.image_size, settings.image_size)),
        transforms.PILToTensor(),
    ]
    if not settings.eight_bit_io:
        steps += [transforms.ConvertImageDtype(image_dtype(settings)), transforms.Normalize(MEAN, STD)]
    return transforms.Compose(steps)


@contextmanager
def loading(settings: Settings, options: poptorch.Options, images: Dataset[Any]) -> Iterator[poptorch.DataLoader]:
    """A loader of shuffled images in batches for whole calls; its processes end with the block."""
    order: dict[str, Any] = {"shuffle": True}
    if settings.limit_batches is not None:
        # A new choice of images every epoch.
        count = settings.calls_per_epoch(len(images)) * settings.images_per_call  # type: ignore[arg-type]
        order = {"sampler": RandomSampler(images, num_samples=count)}  # type: ignore[arg-type]
    mode = poptorch.DataLoaderMode.Async if settings.async_dataloader else poptorch.DataLoaderMode.Sync
    loader = poptorch.DataLoader(
        options,
        images,
        batch_size=settings.batch_size,
        drop_last=True,
        num_workers=settings.num_workers,
        mode=mode,
        **order,
    )
    try:
        yield loader
    finally:
        loader.terminate()


def measured_seconds_per_image(settings: Settings, images: Dataset[Any]) -> float:
    """Seconds that this process needs to load one image, measured over some micro-batches."""
    loader = DataLoader(images, batch_size=settings.batch_size, shuffle=True, drop_last=True)
    batches = iter(loader)
    for _ in islice(batches, WARM_UP_BATCHES):
        pass
    loaded, start = 0, time.perf_counter()
    for pixels, _ in islice(batches, MEASURED_BATCHES):
        loaded += len(pixels)
    return (time.perf_counter() - start) / loaded


def measured_host(settings: Settings, images: PictureDataset) -> HostWork | None:
    """Return what this machine's loader costs, measured now; ``None`` without an IPU Model.

    What the training loop does for each call besides is not part of it.
    """
    seconds = measured_seconds_per_image(settings, images)
    source = f"measured here: {seconds * 1000:.2f} ms an image ({images.description})"
    return engine.host_work(seconds, 0.0, settings.async_dataloader, settings.num_workers, source)


def example_micro_batch(settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of one micro-batch, all zeros: what a profile needs to know of the data."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    dtype = torch.uint8 if settings.eight_bit_io else image_dtype(settings)
    return torch.zeros(shape, dtype=dtype), torch.zeros(settings.batch_size, dtype=torch.int64)
