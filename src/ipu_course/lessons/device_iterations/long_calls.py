"""What longer calls gain and cost: images left out, waiting for results, and memory on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine, ladder, show

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

MEGABYTE = 1e6
ITERATIONS = (1, 4, 16, 64, 256)
IMAGES_PER_UPDATE = 64 * 8
BYTES_PER_IMAGE = 3 * 64 * 64 * 2  # three colours, 64 x 64 pixels, fp16


def left_out(images: int, images_per_call: int) -> int:
    """Return how many of an epoch's ``images`` no whole call takes. Raises ``ValueError`` for calls without images."""
    if images_per_call < 1:
        raise ValueError(f"a call takes at least one image, not {images_per_call}")
    return images % images_per_call


def show_long_calls(program: ModelledModule) -> None:
    """Show what the calls of the ladder's ``program`` take and leave out, by device iterations, as a table."""
    rows = []
    for iterations in ITERATIONS:
        row = long_call_row(iterations)
        if program is not engine.NOT_MODELLED:
            row.update(_modelled(program.profile(host=ladder.host(), device_iterations=iterations)))
        rows.append(row)
    show.table(rows, index="device iterations")


def long_call_row(iterations: int) -> dict[str, object]:
    """Return what follows for the ladder's program from its device iterations, without a model."""
    images, epoch = iterations * IMAGES_PER_UPDATE, ladder.published_ladder().training_images
    missing = left_out(epoch, images)
    return {
        "device iterations": iterations,
        "images per call": f"{images:,}",
        "calls per epoch": f"{epoch // images:,}",
        "images left out": f"{missing:,} ({missing / epoch:.1%})",
        "a call's images on the host": f"{images * BYTES_PER_IMAGE / MEGABYTE:,.0f} MB",
    }


def _modelled(profile: Profile) -> dict[str, object]:
    return {
        "images per second (modelled)": f"{profile.samples_per_second:,.0f}",
        "first results after (modelled)": f"{profile.call_seconds:.1f} s",
        "fullest tile (modelled)": f"{profile.memory.max_tile_bytes / 1024:.0f} KiB",
    }
