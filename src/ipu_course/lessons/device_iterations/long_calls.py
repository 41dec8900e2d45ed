"""What longer calls cost: images left out, waiting for results, and memory on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import show
from ipu_course.ladder import published_ladder

if TYPE_CHECKING:
    from ipu_course.engine import Profile

MEGABYTE = 1e6


def left_out(images: int, images_per_call: int) -> int:
    """How many of an epoch's ``images`` no whole call takes. Raises ``ValueError`` for calls without images."""
    if images_per_call < 1:
        raise ValueError(f"a call takes at least one image, not {images_per_call}")
    return images % images_per_call


def show_long_calls(images_per_update: int, bytes_per_image: int, profiles: Mapping[int, Profile | None]) -> None:
    """Show a table over the device iterations of ``profiles``: what a call takes, and what it leaves out.

    The images are CIFAR-10's 50,000. Seconds are modelled, and left out where a profile is ``None``.
    """
    rows = [_row(each, images_per_update * each, bytes_per_image, profile) for each, profile in profiles.items()]
    show.table(rows, index="device iterations")


def _row(iterations: int, images: int, bytes_per_image: int, profile: Profile | None) -> dict[str, object]:
    epoch = published_ladder().training_images
    missing = left_out(epoch, images)
    row: dict[str, object] = {
        "device iterations": iterations,
        "images in a call": f"{images:,}",
        "calls in an epoch": f"{epoch // images:,}",
        "images left out": f"{missing:,} ({missing / epoch:.1%})",
        "one call's images on the host": f"{images * bytes_per_image / MEGABYTE:,.0f} MB",
    }
    if profile:
        row["first results after (modelled)"] = f"{profile.call_seconds:.1f} s"
    return row
