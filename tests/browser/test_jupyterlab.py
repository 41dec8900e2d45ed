"""A learner opens a notebook in JupyterLab, runs all of it, and uses its widgets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab_server import LabServer, running_lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_page import NotebookFailed, NotebookPage, widgets_expected
from playwright.sync_api import Page

from notebook_build.assemble import METADATA
from notebook_build.lesson import NOTEBOOKS, Lesson, lessons

SLIDER = "import ipywidgets\nipywidgets.IntSlider(value=3, min=0, max=9)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on a copy of the notebook folder, to which tests may add notebooks."""
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns("source", ".*"))
    with running_lab(folder, tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_kernel_left(lab: LabServer, page: Page) -> Iterator[None]:
    """End each test's kernel before its page closes, so that tests do not share the machine."""
    yield
    lab.stop_kernels()


def add_notebook(lab: LabServer, name: str, *code: str) -> str:
    cells = [new_markdown_cell(f"# {name}"), *(new_code_cell(text) for text in code)]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), lab.folder / name)
    return name


def opened(page: Page, lab: LabServer, name: str) -> NotebookPage:
    notebook = NotebookPage(page, lab, name)
    notebook.open()
    return notebook


def test_what_a_notebook_prints_in_the_browser_comes_back(page: Page, lab: LabServer) -> None:
    name = add_notebook(lab, "prints.ipynb", "total = 20 + 22", "print(total)")
    assert opened(page, lab, name).run_all().cells[2].outputs[0].text == "42\n"


def test_a_widget_is_shown_and_moves(page: Page, lab: LabServer) -> None:
    notebook = opened(page, lab, add_notebook(lab, "widget.ipynb", SLIDER))
    assert widgets_expected(notebook.run_all()) == notebook.widgets_shown() == 1
    page.locator(".jupyter-widgets .noUi-handle").press("ArrowRight")
    page.get_by_text("4", exact=True).wait_for(timeout=10_000)


def test_a_cell_that_raises_fails_the_run_with_its_error(page: Page, lab: LabServer) -> None:
    name = add_notebook(lab, "raises.ipynb", "total = 1", "total / 0", "print(total)")
    with pytest.raises(NotebookFailed, match="ZeroDivisionError: division by zero"):
        opened(page, lab, name).run_all()


@pytest.mark.slow
def test_a_kernel_that_dies_fails_the_run(page: Page, lab: LabServer) -> None:
    name = add_notebook(lab, "dies.ipynb", "import os", "os._exit(1)", "print(1)")
    with pytest.raises(NotebookFailed, match="stopped after"):
        opened(page, lab, name).run_all()


# --- explorers: what the lessons' test relies on

EXPLORER = """
import ipywidgets
from IPython.display import HTML, display
from ipu_course.explorers.controls import Choice, Slider, Switch
widgets = {
    "stages": Slider("stages", (1, 2, 4, 8), 2).widget(),
    "format": Choice("format", {"half": 16, "single": 32}, 16).widget(),
    "recompute": Switch("recompute").widget(),
    "schedule": ipywidgets.ToggleButtons(options=["grouped", "sharded"], description="schedule"),
}
display(ipywidgets.Box(list(widgets.values())))
shown = display(HTML("as at first"), display_id=True)
def renew(_):
    view = VIEW
    shown.update(HTML(str(view)))
for widget in widgets.values():
    widget.observe(renew, names="value")
"""
ALL = "[widget.value for widget in widgets.values()]"


def explorer_page(page: Page, lab: LabServer, view: str) -> Explorer:
    """Return an explorer whose view is a Python expression."""
    notebook = opened(page, lab, add_notebook(lab, "explorer.ipynb", EXPLORER.replace("VIEW", view)))
    notebook.run_all()
    (explorer,) = explorers(notebook)
    return explorer


def test_every_control_of_an_explorer_is_moved(page: Page, lab: LabServer) -> None:
    explorer = explorer_page(page, lab, f"tried.add(str({ALL})) or len(tried)".replace("tried", "vars().setdefault"))
    assert sorted(move_everything(explorer)) == ["format", "recompute", "schedule", "stages"]
