"""Links between lessons: sources name a lesson by its number, and the build knows its file and its title.

`[lesson 06](06)` becomes a link to the notebook of lesson 06. The last cell's `**Next:** REASON` gets a link to the
next lesson with its title before the reason; the last lesson keeps what it says.
"""

from __future__ import annotations

import re

from ipu_course.lesson_folders import LessonFolder, lesson_folders
from notebook_build.errors import SourceError
from notebook_build.lesson import LessonSource

NUMBERED = re.compile(r"\]\((\d\d)(#[^)\s]*)?\)")
NAMED = re.compile(r"\]\((\d\d)_[a-z0-9_]+\.ipynb(#[^)\s]*)?\)")
NEXT = "**Next:** "
# A link stands there already where an author has written one by hand.
OPEN_NEXT = re.compile(r"^\*\*Next:\*\* (?!\[)", re.M)


def linked(text: str, lesson: LessonSource) -> str:
    """Return a text cell of a lesson's source with its links to other lessons. Raises SourceError for unknown ones."""
    text = NUMBERED.sub(lambda link: f"]({notebook_of(link[1], lesson)}{link[2] or ''})", text)
    following = next_of(lesson) if OPEN_NEXT.search(text) else None
    return text if following is None else OPEN_NEXT.sub(lambda _: next_words(following), text)


def unlinked(text: str, lesson: LessonSource) -> str:
    """Return what stands in the source for a text cell of the notebook: `linked` makes that cell of it again."""
    following = next_of(lesson) if NEXT in text else None
    if following is not None:
        text = text.replace(next_words(following), NEXT)
    return NAMED.sub(lambda link: f"]({link[1]}{link[2] or ''})", text)


def next_words(following: LessonFolder) -> str:
    """Return what the build writes before the reason to go on with the next lesson."""
    return f"{NEXT}[lesson {following.number}]({following.notebook}), *{following.title}*. "


def next_of(lesson: LessonSource) -> LessonFolder | None:
    """Return the lesson after this one, or None for the last."""
    later = [other for other in lessons_beside(lesson) if other.number > lesson.name[:2]]
    return later[0] if later else None


def notebook_of(number: str, lesson: LessonSource) -> str:
    """Return the file name of the lesson with a number."""
    for other in lessons_beside(lesson):
        if other.number == number:
            return other.notebook
    raise SourceError(f"{lesson.name}: it links to lesson {number}, and there is none")


def lessons_beside(lesson: LessonSource) -> tuple[LessonFolder, ...]:
    """Return all lessons of the course that a lesson belongs to."""
    try:
        return lesson_folders(lesson.source.parents[1])
    except ValueError as problem:
        raise SourceError(str(problem)) from problem
