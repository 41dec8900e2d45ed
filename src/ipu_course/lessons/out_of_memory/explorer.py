"""Lesson 13's explorer: the tiles, the hill over time and the contents of the five programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, View
from ipu_course.figures.floor_and_hill import floor_and_hill
from ipu_course.lessons.out_of_memory.broken import PROGRAMS
from ipu_course.lessons.out_of_memory.decision import KIB, Facts, facts_of
from ipu_course.tile_over_time import Hill, hill_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import Profile
    from ipu_course.lessons.out_of_memory.broken import Profiles

TILES, OVER_TIME, CONTENTS = "memory per tile", "over time", "memory"
PICTURES = {"every tile": TILES, "the fullest tile over time": OVER_TIME, "what fills it": CONTENTS}


def program_view(profiles: Profiles, program: str, picture: str) -> View:
    """Show one picture of a program, and the facts that the questions ask about."""
    place = [each.name for each in PROGRAMS].index(program)
    profile: Profile = profiles[place]
    facts = facts_of(profile)
    drawn, words = _over_time(hill_of(profile)) if picture == OVER_TIME else engine.figure(picture, profile)
    return View(
        drawn,
        takeaway=f"Program {program}: {PROGRAMS[place].what}. Its fullest tile needs {facts.fullest / facts.limit:.2f} "
        "times its memory (modelled).",
        description=f"{words.rstrip('.')} (modelled).",
        rows=[facts_row(program, facts)],
    )


def _over_time(hill: Hill) -> tuple[Figure, str]:
    """Draw a tile over one step, and say in words what the picture shows."""
    peak = hill.peak
    words = (
        f"KiB of the fullest tile over {len(hill.live)} steps. Always live: {hill.floor:.0f}. On top of it are at most "
        f"{hill.height:.0f}, during {hill.names[peak]} ({hill.phases[peak]}): {hill.live[peak]:.0f} of results and "
        f"gradients, and {hill.temporary[peak]:.0f} of temporary data. A tile has {hill.limit:.0f}."
    )
    return floor_and_hill(hill), words


def facts_row(program: str, facts: Facts) -> dict[str, object]:
    """Return the facts as a row, in KiB."""
    sizes = {
        "fullest tile": facts.fullest,
        "average tile": facts.average,
        "always live": facts.always_live,
        "not always live": facts.not_always_live,
        "of it one op": facts.one_op,
        "weights and state": facts.parameters,
        "code": facts.code,
    }
    return {"program": program, "tiles over": f"{facts.over:,}", **{name: _kib(size) for name, size in sizes.items()}}


def _kib(size: float) -> str:
    return f"{size / KIB:,.0f} KiB"


CAUSES = Explorer(
    controls={
        "program": Choice("program", {each.name: each.name for each in PROGRAMS}, "A"),
        "picture": Choice("picture", PICTURES, TILES),
    },
    view=program_view,
)
