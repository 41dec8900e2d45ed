"""What code takes on a tile, for blocks that are all equal and for blocks that all differ."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ipu_course import engine, show
from ipu_course.lessons.memory_techniques.choices import KIB, captured
from ipu_course.lessons.memory_techniques.language_model import (
    BLOCKS,
    FEED_WIDTH,
    LanguageModel,
    Sizes,
    modelled_training,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile

CODE = ("internal exchange code", "vertex state", "vertex code", "control code", "host exchange code")
HEADING = "on the fullest tile (modelled)"
STEP = 128  # by which a width differs from its neighbours, on each side of the mean


def feed_widths(blocks: int, equal: bool) -> tuple[int, ...]:
    """Return the widths of the wide layers: all equal, or all different with the same sum."""
    spread = 0 if equal else STEP
    return tuple(FEED_WIDTH + spread * (2 * block - blocks + 1) for block in range(blocks))


@lru_cache(maxsize=8)
def profile_of_blocks(blocks: int, equal: bool) -> Profile:
    """Return the profile of a language model with so many blocks."""
    if equal and blocks == BLOCKS:
        return captured().profile()
    sizes = Sizes(feed_widths=feed_widths(blocks, equal))
    return modelled_training(lambda: LanguageModel(sizes)).profile()


@engine.needs_the_model
def more_code_kib() -> float:
    """Return the KiB of code on the fullest tile that eight different blocks need more than eight equal ones."""
    return sum(_code(profile_of_blocks(BLOCKS, False)).values()) - sum(_code(profile_of_blocks(BLOCKS, True)).values())


def _code(profile: Profile) -> dict[str, float]:
    """Return the KiB of each kind of code on the fullest tile."""
    sizes = profile.memory[0].bytes_by_category
    return {name: sizes.get(name, 0.0) / KIB for name in CODE}


def show_code() -> None:
    """Show the code of four and eight blocks, equal and different."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    programs = {f"{blocks} {'equal' if equal else 'different'}": _code(profile_of_blocks(blocks, equal))
                for blocks in (BLOCKS // 2, BLOCKS) for equal in (True, False)}  # fmt: skip
    rows: list[dict[str, object]] = [
        {
            HEADING: name,
            **{program: f"{code[name]:.1f} KiB" for program, code in programs.items()},
        }
        for name in CODE
    ]
    together = {program: f"{sum(code.values()):.1f} KiB" for program, code in programs.items()}
    show.table([*rows, {HEADING: "together", **together}], HEADING)
