"""The page on hosted notebooks, and the notebook that has its cells."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from ipu_course.programs.lab.set_up_cell import WHEELS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "hosted_notebooks.md").read_text(encoding="utf-8")
NOTEBOOK = nbformat.read(ROOT / "examples" / "hosted_setup.ipynb", as_version=4)
CELLS = [cell.source for cell in NOTEBOOK.cells if cell.cell_type == "code"]


def test_the_notebook_has_the_cells_of_the_page() -> None:
    assert re.findall(r"```ipython3\n(.*?)\n```", PAGE, re.DOTALL) == CELLS


def test_the_notebook_is_valid_and_has_not_been_run() -> None:
    nbformat.validate(NOTEBOOK)
    assert not [cell for cell in NOTEBOOK.cells if cell.get("outputs") or cell.get("execution_count")]


def test_every_cell_is_python_once_ipython_has_read_it() -> None:
    for cell in CELLS:
        compile(TransformerManager().transform_cell(cell), "cell", "exec")


def test_the_cell_that_installs_names_the_wheels_of_this_version() -> None:
    (install,) = [cell for cell in CELLS if "pip install" in cell]
    assert all(f"{{wheels}}/{name}" in install for name in WHEELS)
