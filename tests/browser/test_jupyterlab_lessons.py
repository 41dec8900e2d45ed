"""A learner who has solved a lesson runs it in JupyterLab, moves every control, and looks at it day and night."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from explorer_page import explorers, move_everything
from lab_server import LabServer
from notebook_page import opened, widgets_expected
from pictures import take_pictures
from playwright.sync_api import Page

from notebook_build.assemble import assemble
from notebook_build.exercise import solved
from notebook_build.lesson import LessonSource, lessons

first, *others = lessons()
# The first lesson stands for all of them by day.
each_lesson = pytest.mark.parametrize(
    "lesson",
    [first, *(pytest.param(lesson, marks=pytest.mark.night) for lesson in others)],
    ids=lambda lesson: lesson.name,
)


@pytest.mark.notebooks
@each_lesson
def test_a_lesson_runs_to_its_end_and_its_controls_work(
    lab_page: Page, lab: LabServer, screenshots: Path, lesson: LessonSource
) -> None:
    nbformat.write(assemble(lesson, solved), lab.folder / lesson.notebook.name)
    notebook = opened(lab_page, lab, lesson.notebook.name)
    try:
        saved = notebook.run_all()
        assert notebook.cells_shown() == len(saved.cells)
        assert notebook.widgets_shown() >= widgets_expected(saved)
        moved = [move_everything(explorer) for explorer in explorers(notebook)]
        print(f"moved: {moved}")
        assert moved
    finally:
        for picture in take_pictures(notebook, screenshots):
            print(f"screenshot: {picture}")
