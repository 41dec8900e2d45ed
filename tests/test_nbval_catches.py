"""What `pytest --nbval` proves about a notebook that notebook_build made, and what it would let pass."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from notebooks_support import places, write_lesson

from notebook_build.__main__ import main
from notebook_build.check import check
from notebook_build.lesson import LessonSource

# One cell for each kind of output, each with a figure in it.
SOURCE = """\
# %%
print("31 ms modelled")

# %%
30 + 1

# %%
from IPython.display import HTML, Markdown
HTML("<td>31 MB</td>")

# %%
Markdown("**31 %**")

# %% tags=["nbval-ignore-output"]
print("measured: 31 s")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> LessonSource:
    lesson = write_lesson(tmp_path_factory.mktemp("nbval"), SOURCE)
    assert main(["build", *places(lesson.notebook.parent)]) == 0
    return lesson


def changed(built: LessonSource, folder: Path, change: Callable[[NotebookNode], None]) -> LessonSource:
    """Return a copy of the built lesson whose cells were changed."""
    lesson = write_lesson(folder, SOURCE)
    notebook = nbformat.read(built.notebook, as_version=4)
    for cell in notebook.cells:
        change(cell)
    nbformat.write(notebook, lesson.notebook)
    return lesson


def another_figure(cell: NotebookNode) -> None:
    for output in cell.outputs:
        if "text" in output:
            output.text = output.text.replace("31", "32")
        for kind, text in output.get("data", {}).items():
            output.data[kind] = text.replace("31", "32")


def never_executed(cell: NotebookNode) -> None:
    cell.outputs, cell.execution_count = [], None


def nbval(lesson: LessonSource) -> list[str]:
    """Return nbval's verdicts in cell order; it is run as learners run it, from another folder."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--nbval", str(lesson.notebook)]
    done = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode in (0, 1), done.stdout
    return re.findall(r"::Cell \d+ ([A-Z]+)", done.stdout)


def test_it_passes_what_was_built(built: LessonSource) -> None:
    assert nbval(built) == ["PASSED"] * 5
    assert check(built) == []


def test_it_catches_another_figure_in_every_kind_of_output_that_is_not_ignored(
    built: LessonSource, tmp_path: Path
) -> None:
    """The last one passes, so the check caps how many cells may ignore their output (test_notebook_build.py)."""
    assert nbval(changed(built, tmp_path, another_figure)) == ["FAILED"] * 4 + ["PASSED"]


def test_the_check_catches_cells_that_were_never_executed(built: LessonSource, tmp_path: Path) -> None:
    """nbval lets the first one pass; that is why there is a check."""
    emptied = changed(built, tmp_path, never_executed)
    assert nbval(emptied)[0] == "PASSED"
    assert "not one run from a clean kernel" in "\n".join(check(emptied))
