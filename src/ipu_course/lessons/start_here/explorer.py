"""The first lesson's explorer: one profile, and every picture that a profile has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.explorers.controls import Choice
from ipu_course.explorers.explorer import View, explore

if TYPE_CHECKING:
    from ipu_course.engine import Profile

QUESTIONS = {
    "Does it fit? Memory of every tile": "memory per tile",
    "What fills the memory?": "memory",
    "Who waits for whom? Host and device": "host and device",
    "What do the IPUs do, and when?": "timeline",
    "Where do the cycles go?": "cycles",
}
READING = {
    "memory per tile": "Read: does any tile come near the dashed limit?",
    "memory": "Read: what is always there, and what shares its place over time?",
    "host and device": "Read: the device works only after the host has loaded; long gaps are waiting IPUs.",
    "timeline": "Read: when IPU 0 works and IPU 1 does not, the pipeline is filling or draining (lesson 06).",
    "cycles": "Read: OnTileExecute is computing, DoExchange is exchange, the syncs and StreamCopyBegin are waiting.",
}


def explore_profile(profile: Profile | None) -> None:
    """Show one picture of ``profile`` after another, as the learner chooses."""
    if not profile:
        print(engine.NOT_HERE)
        return

    explore({"picture": Choice("question", QUESTIONS, "host and device")}, lambda picture: view_of(profile, picture))


def view_of(profile: Profile, picture: str) -> View:
    """The view of one picture of ``profile``, with how to read it."""
    drawn, words = engine.figure(picture, profile)
    return View(drawn, description=f"{words} Modelled.", text=READING[picture])
