"""How the tests handle JupyterLab, tried on small notebooks: open, run all, move widgets, take pictures."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from explorer_page import CELLS, explorers, move_everything
from lab_server import LabServer
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_page import NotebookFailed, opened, widgets_expected
from pictures import take_pictures
from PIL import Image
from playwright.sync_api import Page

from notebook_build.assemble import METADATA

SLIDER = "import ipywidgets\nipywidgets.IntSlider(value=3, min=0, max=9)"


def add_notebook(lab: LabServer, name: str, *code: str) -> str:
    cells = [new_markdown_cell(f"# {name}"), *(new_code_cell(text) for text in code)]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), lab.folder / name)
    return name


def test_what_a_notebook_prints_in_the_browser_comes_back(lab_page: Page, lab: LabServer) -> None:
    name = add_notebook(lab, "prints.ipynb", "total = 20 + 22", "print(total)")
    assert opened(lab_page, lab, name).run_all().cells[2].outputs[0].text == "42\n"


def test_a_widget_is_shown_and_moves(lab_page: Page, lab: LabServer) -> None:
    notebook = opened(lab_page, lab, add_notebook(lab, "widget.ipynb", SLIDER))
    assert widgets_expected(notebook.run_all()) == notebook.widgets_shown() == 1
    lab_page.locator(".jupyter-widgets .noUi-handle").press("ArrowRight")
    lab_page.get_by_text("4", exact=True).wait_for(timeout=10_000)


def test_a_cell_that_raises_fails_the_run_with_its_error(lab_page: Page, lab: LabServer) -> None:
    name = add_notebook(lab, "raises.ipynb", "total = 1", "total / 0", "print(total)")
    with pytest.raises(NotebookFailed, match="ZeroDivisionError: division by zero"):
        opened(lab_page, lab, name).run_all()


def test_a_kernel_that_dies_fails_the_run(lab_page: Page, lab: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notebook_page.LOOKS_BEFORE_GIVING_UP", 4)
    monkeypatch.setattr("notebook_page.SAVE_LOOKS", 10)  # JupyterLab's dialog about the kernel takes the keys
    name = add_notebook(lab, "dies.ipynb", "import os", "os._exit(1)", "print(1)")
    with pytest.raises(NotebookFailed, match="stopped after"):
        opened(lab_page, lab, name).run_all()


# --- explorers, as the test of the lessons moves them (test_jupyterlab_lessons.py)

EXPLORER = """
import ipywidgets
from IPython.display import HTML, display
from ipu_course.explorers import Choice, Slider, Switch

controls = [
    Slider("stages", (1, 2, 4, 8), 2).widget(),
    Choice("format", {"half": 16, "single": 32}, 16).widget(),
    Switch("recompute").widget(),
    ipywidgets.ToggleButtons(options=["grouped", "sharded"], description="schedule"),
]
display(ipywidgets.Box(controls))
shown = display(HTML("as at first"), display_id=True)
seen = []

def renew(_):
    stages, bits, recompute, schedule = [control.value for control in controls]
    seen.append((stages, bits, recompute, schedule))
    shown.update(HTML(VIEW))

for control in controls:
    control.observe(renew, names="value")
"""


def moved(lab_page: Page, lab: LabServer, view: str) -> tuple[list[str], str]:
    """Move the controls of an explorer whose view is a Python expression; return their labels and all settings seen."""
    name = add_notebook(lab, "explorer.ipynb", EXPLORER.replace("VIEW", view))
    notebook = opened(lab_page, lab, name)
    notebook.run_all()
    (explorer,) = explorers(notebook)
    return move_everything(explorer), str(lab_page.locator(CELLS).inner_text())


def test_every_control_is_moved_to_its_ends_alone_and_with_the_others(lab_page: Page, lab: LabServer) -> None:
    labels, shown = moved(lab_page, lab, "str(sorted(set(seen), key=str)) + str(seen[-1])")
    assert sorted(labels) == ["format", "recompute", "schedule", "stages"]
    for alone in ((1, 16, False, "grouped"), (8, 16, False, "grouped"), (2, 32, False, "grouped")):
        assert str(alone) in shown
    for together in ((1, 16, True, "grouped"), (8, 32, False, "sharded")):
        assert str(together) in shown
    # The last of all is where it began.
    assert shown.rstrip().endswith(str((2, 16, False, "grouped")))


def test_a_control_without_effect_is_found(lab_page: Page, lab: LabServer) -> None:
    with pytest.raises(NotebookFailed, match="'format' changes nothing"):
        moved(lab_page, lab, "str((stages, recompute, schedule))")


def test_a_setting_that_leads_to_a_fault_is_found(lab_page: Page, lab: LabServer) -> None:
    fault = "There is no picture for this setting: out of memory"
    with pytest.raises(NotebookFailed, match=r"'stages' at 3\S* leads to: There is no picture"):
        moved(lab_page, lab, f'"{fault}" if stages == 8 else str(seen[-1])')


def test_a_control_of_an_unknown_kind_is_found(lab_page: Page, lab: LabServer) -> None:
    notebook = opened(lab_page, lab, add_notebook(lab, "text.ipynb", "import ipywidgets\nipywidgets.Text()"))
    notebook.run_all()
    (explorer,) = explorers(notebook)
    with pytest.raises(AssertionError, match="1 controls that are neither slider"):
        move_everything(explorer)


# --- pictures


@pytest.mark.parametrize("every", [False, True])
def test_pictures_show_the_notebook_in_both_themes(
    lab_page: Page, lab: LabServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    monkeypatch.delenv("IPU_COURSE_SCREENSHOTS", raising=False)
    if every:
        monkeypatch.setenv("IPU_COURSE_SCREENSHOTS", str(tmp_path))
    notebook = opened(lab_page, lab, add_notebook(lab, "long.ipynb", "print('\\n' * 150)", "print('end')"))
    notebook.run_all()
    taken = [picture.name for picture in take_pictures(notebook, tmp_path)]
    assert {name.split("-")[1] for name in taken} == {"light", "dark"}
    assert ("long-dark-01.png" in taken) == every
    # In the picture's middle there is nothing but the notebook's background.
    colours = {theme: middle_of(next(tmp_path.glob(f"long-{theme}-*.png"))) for theme in ("light", "dark")}
    assert min(colours["light"]) > 200
    assert max(colours["dark"]) < 60


def middle_of(picture: Path) -> tuple[int, ...]:
    with Image.open(picture) as image:
        return tuple(image.convert("RGB").getpixel((image.width // 2, image.height // 2)))
