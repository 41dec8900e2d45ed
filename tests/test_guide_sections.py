"""The page of the guide's sections is complete, and every lesson has the heading that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide_sections import HEADING_ONLY, IN_PART, PAGE, READ, Section, page_text, sections

from ipu_course.lesson_folders import LESSONS_FOLDER, lesson_folders

# The guide's list of contents, one section a line: "4.8 Tile mapping".
CONTENTS = Path(__file__).with_name("guide_headings.txt").read_text(encoding="utf-8").splitlines()
HEADING = re.compile(r"^# ## (.+)$", re.MULTILINE)


def headings(lesson: str) -> set[str]:
    """Return the second-level headings of a lesson."""
    (source,) = LESSONS_FOLDER.glob(f"*/{lesson}_*.py")
    return set(HEADING.findall(source.read_text(encoding="utf-8")))


def test_every_section_of_the_guide_is_listed_in_its_order() -> None:
    assert len(CONTENTS) == 82, "the contents page has 82 sections, without that of trademarks"
    assert [f"{each.number} {each.title}" for each in sections()] == CONTENTS


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.number)
def test_a_section_has_a_place_and_the_place_has_the_heading(section: Section) -> None:
    assert section.taught, f"section {section.number} is taught nowhere: name at least the lesson that it waits for"
    assert section.text in (READ, IN_PART, HEADING_ONLY)
    written = {lesson.number for lesson in lesson_folders()}
    for place in section.taught:
        if place.heading:
            assert place.lesson in written
            assert place.heading in headings(place.lesson), (
                f"lesson {place.lesson} has no heading {place.heading!r} any more: "
                "name the new one in tools/guide_sections.json, and run `python tools/guide_sections.py`"
            )
        else:
            assert place.lesson not in written, f"lesson {place.lesson} exists: name its heading for {section.number}"


def test_the_page_says_what_the_data_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "`python tools/guide_sections.py` writes the page anew"
