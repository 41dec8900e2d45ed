"""The ladder as a text table: every step modelled beside its published result."""

from __future__ import annotations

from typing import Sequence

from ipu_course import engine
from ipu_course.ladder import ModelledStep, PublishedLadder
from ipu_course.programs.text import aligned, wrapped

KIB = 1024
HEADINGS = (
    ("step", ""),
    ("epoch s", "modelled"),
    ("epoch s", "derived"),
    ("error", ""),
    ("it/s", "modelled"),
    ("it/s", "published"),
    ("KiB on a tile", "modelled"),
    ("fits", "modelled"),
    ("fits", "published"),
    ("limited by", "modelled"),
)
NOTHING = "-"
# Short enough for a narrow column.
CELLS = {"fits": "yes", "too close to call": "close", "does not fit": "no"}


def ladder_table(steps: Sequence[ModelledStep], ladder: PublishedLadder) -> str:
    """Return the steps as a text table with notes on where its numbers come from."""
    rows = [tuple(heading[line] for heading in HEADINGS) for line in (0, 1)]
    rows += [_cells(step) for step in steps]
    table = aligned(rows, left=(0, len(HEADINGS) - 1), heads=2)
    return "\n".join([ladder.title, "", table, "", *_notes(ladder)])


def _cells(modelled: ModelledStep) -> tuple[str, ...]:
    step, profile = modelled.published, modelled.profile
    return (
        step.name,
        _number(modelled.epoch_seconds, ".1f"),
        _number(step.epoch_seconds, ".1f"),
        NOTHING if modelled.error is None else f"{100 * modelled.error:+.1f} %",
        _number(1 / profile.call_seconds if engine.may_run(profile) else None, ".2f"),
        _number(1 / step.seconds_per_call if step.seconds_per_call else None, ".2f"),
        f"{profile.memory.max_tile_bytes / KIB:.0f}",
        CELLS[engine.memory_verdict(profile)],
        "yes" if step.fits else "no",
        profile.limited_by if engine.may_run(profile) else "memory",
    )


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _notes(ladder: PublishedLadder) -> list[str]:
    host = ladder.host
    notes = [
        f"modelled: by the IPU Model. published: {ladder.source}; {ladder.machine}; mean of epochs 2 to 5. derived: "
        "calls an epoch times the published time of a call.",
        f"host: {host.seconds_per_image * 1000:.2f} ms an image, {host.seconds_per_eight_bit_image * 1000:.2f} ms with "
        f"8-bit I/O, {host.seconds_per_call * 1000:.0f} ms a call, {host.source}: where the host limits, a small error "
        "shows the fit and not the model of the IPUs.",
    ]
    return [line for note in notes for line in wrapped(note)]
