"""The course's own notebooks: built from their sources, in the form of a lesson, and honest about every answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebooks_support import LESSONS, each_lesson, first_on_path

from notebook_build.check import check
from notebook_build.lesson import NOTEBOOKS, Lesson
from notebook_build.lint import lint
from notebook_build.trial import run_trial
from notebook_build.verdicts import faults


def test_there_are_lessons_and_each_notebook_has_its_source() -> None:
    assert LESSONS, f"no lesson in {NOTEBOOKS / 'source'}"
    assert sorted(NOTEBOOKS.glob("*.ipynb")) == sorted(lesson.notebook for lesson in LESSONS)


@each_lesson
def test_the_notebook_is_what_its_source_says_and_was_executed(lesson: Lesson) -> None:
    assert not (found := check(lesson)), "\n".join(found)


@each_lesson
def test_the_lesson_keeps_to_the_form_of_a_lesson(lesson: Lesson) -> None:
    assert not (found := lint(lesson)), "\n".join(found)


@pytest.mark.notebooks
@each_lesson
def test_the_solved_lesson_runs_without_a_network_and_every_answer_gets_its_verdict(
    lesson: Lesson, project: Path
) -> None:
    """One run of the lesson, in which its wrong answers precede its solutions: tests/wrong_answers/README.md."""
    found = list(faults(run_trial(lesson, first_on_path(project / "tools" / "offline"))))
    assert not found, "\n".join(found)
