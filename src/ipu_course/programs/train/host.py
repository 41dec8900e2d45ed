"""What the program costs its host: as fitted on the hands-on's published epochs, or as measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.datasets.cifar10_pictures import PictureDataset
from ipu_course.programs.train.loading import measured_seconds_per_image
from ipu_course.programs.train.published import published_ladder
from ipu_course.programs.train.settings import Settings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork

PUBLISHED_IMAGE_SIZE = 64


def hands_on_host(settings: Settings) -> HostWork | None:
    """The hands-on's host running these settings; ``None`` without an IPU Model."""
    fitted = published_ladder().host
    seconds = fitted.seconds_per_eight_bit_image if settings.eight_bit_io else fitted.seconds_per_image
    return _host_work(settings, seconds, fitted.seconds_per_call, fitted.source + _beyond(settings))


def measured_host(settings: Settings, images: PictureDataset) -> HostWork | None:
    """This machine running the program's loader, measured now; ``None`` without an IPU Model.

    What the training loop does for a call besides is not part of it.
    """
    seconds = measured_seconds_per_image(settings, images)
    source = f"measured here: {seconds * 1000:.2f} ms an image ({images.description})"
    return _host_work(settings, seconds, 0.0, source)


def _host_work(settings: Settings, per_image: float, per_call: float, source: str) -> HostWork | None:
    return engine.host_work(per_image, per_call, settings.async_dataloader, settings.num_workers, source)


def _beyond(settings: Settings) -> str:
    """What the published programs do not cover."""
    beyond = []
    if settings.image_size != PUBLISHED_IMAGE_SIZE:
        beyond.append(f"{settings.image_size} x {settings.image_size} images cost as much as 64 x 64")
    if settings.image_bits == 32:
        beyond.append("32-bit images cost as much as 16-bit ones")
    if settings.num_workers:
        beyond.append("no published run had loader workers")
    return f"; assumed: {', '.join(beyond)}" if beyond else ""
