"""A learner starts the course with `python -m ipu_course lab`, guesses once, and runs a lesson from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab_server import LabServer, running_lab
from notebook_page import NotebookPage, code_cells, read
from pictures import take_pictures
from playwright.sync_api import Page

from ipu_course.lesson import WAITS

LESSON = "02_gradient_accumulation.ipynb"
OPEN_GUESS = re.compile(r"(lesson\.predict\(.*), \.\.\.\)", re.S)


@pytest.fixture(scope="module")
def learners_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab as the course's own command starts it, on a copy that it has just made."""
    folder = tmp_path_factory.mktemp("learner") / "my_course"
    start = ("ipu_course", "lab", "--no-browser", "--folder", str(folder), "--")
    with running_lab(folder, tmp_path_factory.mktemp("home"), start) as server:
        yield server
        server.stop_kernels()


@pytest.mark.notebooks
def test_a_fresh_copy_runs_and_shows_only_what_was_guessed(
    learners_lab: LabServer, page: Page, screenshots: Path
) -> None:
    lesson = NotebookPage(page, learners_lab, LESSON)
    copy = read(lesson.path)
    assert not [cell for cell in code_cells(copy) if cell.outputs or cell.execution_count]
    predictions = [cell for cell in code_cells(copy) if OPEN_GUESS.search(cell.source)]
    assert len(predictions) > 1
    predictions[0].source = OPEN_GUESS.sub(r"\1, 12)", predictions[0].source)
    nbformat.write(copy, lesson.path)

    lesson.open()
    saved = lesson.run_all()
    first, *others = code_cells(saved)
    shown = first.outputs[0].data
    assert "Lesson 02: plan " in shown["text/plain"]
    assert '<a href="03_device_iterations.ipynb"' in shown["text/html"]
    printed = "".join(output.get("text", "") for cell in others for output in cell.outputs)
    assert printed.count("your guess: 12") == 1
    assert printed.count(WAITS) == len(predictions) - 1
    for picture in take_pictures(lesson, screenshots):
        print(f"screenshot: {picture}")
