"""Write docs/guide_sections.md: each section of Graphcore's optimisation guide, and where the course teaches it.

`guide_sections.json` lists the sections in the guide's order, how much of the guide's text was available, and the
lessons and headings that teach it; a lesson without a heading does not teach it yet. `python tools/guide_sections.py`
writes only this page; `make docs` writes it, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ipu_course.lesson_folders import LessonFolder, lesson_folders

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs" / "guide_sections.md", ROOT / "tools" / "guide_sections.json"
# How much of the guide's own text the course's authors could read.
READ, IN_PART, HEADING_ONLY = "read", "in part", "heading only"
HEAD = """# Where the course teaches the optimisation guide

This page lists every section of Graphcore's *[Memory and Performance Optimisation on the
IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, with the lessons and headings that teach it.
A section marked *open* will be taught in a later lesson. If only the heading of a section was available to us, the
text, the procedures and the numbers of the lesson are the course's own, from other public sources and from the IPU
Model.

`tools/guide_sections.py` writes this page from `tools/guide_sections.json`, and a test compares it with the guide's
list of contents and with the lessons' headings.

| section of the guide | how much of its text was available | taught in |
|---|---|---|
"""


@dataclass(frozen=True)
class Place:
    """A lesson, and the heading that teaches a section; no heading as long as the lesson does not teach it."""

    lesson: str
    heading: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the guide; ``text`` says how much of it could be read."""

    number: str
    title: str
    text: str
    taught: tuple[Place, ...]


def sections() -> tuple[Section, ...]:
    """Return the guide's sections in its order."""
    return tuple(
        Section(each["section"], each["title"], each["text"], tuple(Place(**place) for place in each["taught"]))
        for each in json.loads(DATA.read_text(encoding="utf-8"))
    )


def page_text() -> str:
    """Return the page; raises ``ValueError`` for a heading in a lesson that does not exist."""
    lessons = {each.number: each for each in lesson_folders()}
    rows = [
        f"| {section.number} {section.title} | {section.text} | "
        f"{'; '.join(_place(place, lessons) for place in section.taught)} |\n"
        for section in sections()
    ]
    return HEAD + "".join(rows)


def _place(place: Place, lessons: dict[str, LessonFolder]) -> str:
    if not place.heading:
        return f"open (lesson {place.lesson})"
    if place.lesson not in lessons:
        raise ValueError(f"{DATA.name}: there is no lesson {place.lesson} with a heading {place.heading!r}")
    anchor = place.heading.replace(" ", "-")
    return f"[{place.lesson} {place.heading}](../notebooks/{lessons[place.lesson].notebook}#{anchor})"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
