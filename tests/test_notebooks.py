"""The course's own notebooks: built from their sources, executed, worth comparing (nbval compares)."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode

from notebook_build.assemble import assemble, exercises_of
from notebook_build.check import check
from notebook_build.execute import execute
from notebook_build.exercise import solved
from notebook_build.lesson import NOTEBOOKS, Lesson, lessons

LESSONS = lessons()
UNANSWERED = "not attempted yet"
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def printed(notebook: NotebookNode) -> str:
    """Return all that a notebook's cells print."""
    return "\n".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))


def test_there_are_lessons_and_each_notebook_has_its_source() -> None:
    assert LESSONS, f"no lesson in {NOTEBOOKS / 'source'}"
    assert sorted(NOTEBOOKS.glob("*.ipynb")) == sorted(lesson.notebook for lesson in LESSONS)


@each_lesson
def test_the_notebook_is_what_its_source_says_and_was_executed(lesson: Lesson) -> None:
    assert not (found := check(lesson)), "\n".join(found)


@pytest.mark.notebooks
@each_lesson
def test_the_solved_lesson_runs_and_answers_every_exercise(lesson: Lesson) -> None:
    if not exercises_of(lesson):
        pytest.skip("this lesson has no exercise: its solved form is the notebook that nbval runs")
    notebook = execute(assemble(lesson, solved), lesson.notebook.parent)
    assert UNANSWERED not in printed(notebook)
