"""The course's own notebooks: built from their sources, in the form of a lesson, and honest about every answer.

Each runs three times. `pytest --nbval` runs it as learners get it and compares its outputs; at night, a browser runs it
solved (browser/test_jupyterlab_lessons.py); here it meets every wrong answer, without a network and an IPU Model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from notebooks_support import LESSONS, each_lesson, first_on_path, modelled_figures

from ipu_course.lesson_folders import LESSONS_FOLDER
from notebook_build.assemble import assemble
from notebook_build.check import check
from notebook_build.execute import execute
from notebook_build.lesson import NOTEBOOKS, LessonSource
from notebook_build.lint import lint
from notebook_build.trial import run_trial
from notebook_build.verdicts import faults
from notebook_build.wrong_answers import asks_the_model


def test_there_are_lessons_and_each_notebook_has_its_source() -> None:
    assert LESSONS, f"no lesson in {LESSONS_FOLDER}"
    assert sorted(NOTEBOOKS.glob("*.ipynb")) == sorted(lesson.notebook for lesson in LESSONS)


@each_lesson
def test_the_notebook_is_what_its_source_says_and_was_executed(lesson: LessonSource) -> None:
    assert not (found := check(lesson)), "\n".join(found)


@each_lesson
def test_the_lesson_keeps_to_the_form_of_a_lesson(lesson: LessonSource) -> None:
    assert not (found := lint(lesson)), "\n".join(found)


@pytest.mark.notebooks
@each_lesson
def test_every_answer_gets_its_verdict_and_without_a_model_nothing_is_modelled(
    lesson: LessonSource, project: Path
) -> None:
    """One run of the lesson, in which its wrong answers precede its solutions: tools/notebook_build/answers.md."""
    offline, without_model = (first_on_path(project / folder) for folder in ("tools/offline", "tests/stand_in"))
    if asks_the_model(lesson):
        trial = run_trial(lesson, offline)
        shown = execute(assemble(lesson), lesson.notebook.parent, without_model)
    else:
        trial = run_trial(lesson, without_model)
        shown = trial.notebook
    assert not (found := list(faults(trial))), "\n".join(found)
    assert not (figures := list(modelled_figures(shown))), "\n".join(figures)
