"""The hands-on's sequence of settings, modelled beside its published results."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Sequence

from ipu_course import engine
from ipu_course.programs.train.host import hands_on_host
from ipu_course.programs.train.profiles import KIB, captured, epoch_seconds
from ipu_course.programs.train.published import PublishedLadder, PublishedStep, published_ladder
from ipu_course.programs.train.settings import Settings

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

HEADINGS = (
    ("step", ""),
    ("epoch s", "modelled"),
    ("epoch s", "published"),
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
NOTE_WIDTH = 110


@dataclass(frozen=True)
class Rung:
    """One step of the hands-on: what was published of it, and its modelled profile."""

    published: PublishedStep
    profile: Profile
    calls_per_epoch: int

    @property
    def epoch_seconds(self) -> float | None:
        """Modelled seconds of an epoch, unless the program does not fit."""
        return epoch_seconds(self.profile, self.calls_per_epoch) if engine.may_run(self.profile) else None

    @property
    def error(self) -> float | None:
        """By how much the modelled epoch differs from the published one: 0.05 is 5 % too long."""
        ours, theirs = self.epoch_seconds, self.published.epoch_seconds
        return None if ours is None or theirs is None else ours / theirs - 1


def climb(names: Sequence[str] | None = None) -> tuple[Rung, ...]:
    """Profile the steps of the hands-on with these ``names``, all by default.

    Raises ``CourseError`` where there is no IPU Model.
    """
    ladder = published_ladder()
    rungs = []
    programs: dict[Settings, ModelledModule] = {}  # what differs in its loops or on its host only is captured once
    for step in ladder.steps:
        if names is not None and step.name not in names:
            continue
        settings = step.settings
        kind = replace(settings, gradient_accumulation=3, device_iterations=1, async_dataloader=False)
        if kind not in programs:
            programs[kind] = captured(kind)
        profile = programs[kind].profile(
            hands_on_host(settings),
            gradient_accumulation=settings.gradient_accumulation,
            device_iterations=settings.device_iterations,
        )
        rungs.append(Rung(step, profile, step.settings.calls_per_epoch(ladder.training_images)))
    return tuple(rungs)


def table(rungs: Sequence[Rung], ladder: PublishedLadder) -> str:
    """The steps as a text table, and what to know about it."""
    rows = [tuple(heading[line] for heading in HEADINGS) for line in (0, 1)]
    rows += [_cells(rung) for rung in rungs]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [_aligned(row, widths) for row in rows]
    lines.insert(2, "-" * max(len(line) for line in lines))
    return "\n".join([ladder.title, "", *lines, "", *_notes(ladder)])


def _cells(rung: Rung) -> tuple[str, ...]:
    step, profile = rung.published, rung.profile
    return (
        step.name,
        _number(rung.epoch_seconds, ".1f"),
        _number(step.epoch_seconds, ".1f"),
        NOTHING if rung.error is None else f"{100 * rung.error:+.1f} %",
        _number(1 / profile.call_seconds if engine.may_run(profile) else None, ".2f"),
        _number(1 / step.seconds_per_call if step.seconds_per_call else None, ".2f"),
        f"{profile.memory.max_tile_bytes / KIB:.0f}",
        CELLS[engine.memory_verdict(profile)],
        "yes" if step.fits else "no",
        profile.limited_by if engine.may_run(profile) else "memory",
    )


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Texts to the left, numbers to the right."""
    cells = [
        text.ljust(width) if column in (0, len(row) - 1) else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths))
    ]
    return "  ".join(cells).rstrip()


def _notes(ladder: PublishedLadder) -> list[str]:
    host = ladder.host
    notes = [
        f"modelled: by the IPU Model. published: {ladder.source}; {ladder.machine}; mean of epochs 2 to 5.",
        f"host: {host.seconds_per_image * 1000:.2f} ms an image, {host.seconds_per_eight_bit_image * 1000:.2f} ms with "
        f"8-bit I/O, {host.seconds_per_call * 1000:.0f} ms a call, {host.source}: where the host limits, a small error "
        "shows the fit and not the model of the IPUs.",
    ]
    return [line for note in notes for line in textwrap.wrap(note, NOTE_WIDTH)]
