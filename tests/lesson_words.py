"""What a lesson says: in its text, in its instructor's notes, and in the outputs that its notebook has saved."""

from __future__ import annotations

import re
from functools import lru_cache

import nbformat

from ipu_course.lesson_folders import LESSONS_FOLDER
from notebook_build.lesson import lessons


def text(number: str) -> str:
    """Return the text of a lesson's notebook, such as "02", with single spaces between its words."""
    return _joined("\n".join(cell.source for cell in _cells(number) if cell.cell_type == "markdown"))


def notes(topic: str) -> str:
    """Return the instructor's notes of the lesson in the folder ``topic``, with single spaces between its words."""
    return _joined((LESSONS_FOLDER / topic / "instructor.md").read_text(encoding="utf-8"))


def outputs(number: str) -> str:
    """Return all that the saved notebook of a lesson prints, and the descriptions of its figures."""
    told = [output for cell in _cells(number) if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in told)


def printed(number: str, pattern: str) -> float:
    """Return the number that the group of ``pattern`` finds first in a lesson's outputs."""
    found = re.search(pattern, outputs(number))
    assert found, f"no output of lesson {number} has {pattern!r}"
    return float(found.group(1).replace(",", ""))


@lru_cache(maxsize=None)
def _cells(number: str) -> tuple[nbformat.NotebookNode, ...]:
    (lesson,) = lessons((number,))
    return tuple(nbformat.read(lesson.notebook, as_version=4).cells)


def _joined(words: str) -> str:
    return " ".join(words.split())
