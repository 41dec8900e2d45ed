"""What settings do to the five programs, and what the compiler says of one of them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping

from ipu_course import engine, figures, show
from ipu_course.lessons.out_of_memory.broken import PROGRAMS, captured
from ipu_course.lessons.out_of_memory.decision import KIB, facts_of
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.out_of_memory.broken import BrokenProgram, Profiles

HALF_BATCH = "half the micro-batch"
HALF = "half precision"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    HALF: {"half_precision": True},
    "proportion 0.1": {"available_memory_proportion": 0.1},
    "state off the chip": {"optimiser_off_chip": True},
}
SENTENCE = re.compile(r"(?<=[.)]) (?=[A-Z]|ipu_model|poptorch)")


def print_sentences(message: object) -> None:
    """Print a message with one sentence a line; where there is no IPU Model, leave out what only it could say."""
    for sentence in SENTENCE.split(str(message)):
        if engine.is_available() or "modelled" not in sentence:
            print(sentence)


def show_programs(profiles: Profiles) -> None:
    """Show what each program is, and what its fullest tile needs."""
    rows: list[dict[str, object]] = []
    for program, profile in zip(PROGRAMS, profiles):
        facts = facts_of(profile)
        rows.append(
            {
                "program (modelled)": program.name,
                "what it trains": program.what,
                "fullest tile needs": f"{facts.fullest:,.0f} bytes",
                "too much by": f"{facts.fullest / facts.limit - 1:.0%}",
            }
        )
    show.table(rows, index="program (modelled)")


@lru_cache(maxsize=64)
def with_setting(program: BrokenProgram, setting: str) -> Profile:
    """Return the profile of a program with one setting changed."""
    if setting == HALF_BATCH:
        return program.modelled(micro_batch=program.micro_batch // 2).profile()
    return captured(program).profile(**SETTINGS[setting])


@engine.needs_the_model
def fit_in_half_precision() -> int:
    """Return how many of the five programs fit in half precision."""
    return sum(with_setting(program, HALF).verdict.value == "fits" for program in PROGRAMS)


def show_half_precision(profiles: Profiles) -> None:
    """Show the fullest tile of each program in single and in half precision."""
    if profiles is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    half = [with_setting(program, HALF) for program in PROGRAMS]
    sizes = {
        "single precision": [profile.memory.max_tile_bytes / KIB for profile in profiles],
        HALF: [profile.memory.max_tile_bytes / KIB for profile in half],
    }
    names = [program.name for program in PROGRAMS]
    limit = profiles.a.memory.tile_bytes / KIB
    drawn = figures.bars_figure(
        names, sizes, "KiB on the fullest tile", "The fullest tile (modelled)", form="{:,.0f}",
        limit=(limit, f"{limit:.0f} KiB"),
    )  # fmt: skip
    told = "; ".join(
        f"{name} {before:,.0f} and {after:,.0f} KiB" for name, before, after in zip(names, *sizes.values())
    )
    show.figure(
        drawn,
        "One setting saves three programs, misses one narrowly, and makes one worse.",
        f"The fullest tile of each program in single and in half precision, modelled: {told}. A tile has "
        f"{limit:.0f} KiB.",
    )


def show_settings(profiles: Profiles) -> None:
    """Show which setting makes which program fit."""
    if profiles is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    rows = [
        {
            "program (modelled)": program.name,
            **{name: with_setting(program, name).verdict.value for name in (HALF_BATCH, *SETTINGS)},
        }
        for program in PROGRAMS
    ]
    show.table(rows, index="program (modelled)")
