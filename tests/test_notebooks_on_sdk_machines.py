"""The stand-in for a machine with the Poplar SDK, where there is no IPU Model (tests/stand_in/sitecustomize.py).

Graphcore's `poptorch` is in no package registry, so ours stands in for it. test_notebooks.py runs the lessons there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from notebooks_support import first_on_path, modelled_figures, shown, write_lesson

from notebook_build.assemble import assemble
from notebook_build.execute import execute


@pytest.fixture(scope="module")
def without_engine(project: Path) -> dict[str, str]:
    """The variables of a kernel that has no IPU Model."""
    return first_on_path(project / "tests" / "stand_in")


REFUSED = """\
# %%
from importlib import import_module
from importlib.util import find_spec

import poptorch
from ipu_course import engine

print(engine.is_available(), find_spec("ipu_model"), find_spec("ipu_model.step"))

# %%
def tried(action):
    try:
        action()
    except ModuleNotFoundError as problem:
        return problem.name
    return "imported"

def statement():
    from ipu_model.report import text

print(tried(statement), tried(lambda: import_module("ipu_model.step")), tried(lambda: __import__("ipu_model")))

# %%
exec("def reach(): import ipu_model", vars(engine))
print(tried(engine.reach))

# %%
import torch
model = poptorch.inferenceModel(torch.nn.Linear(2, 3), poptorch.Options().showCompilationProgressBar(False))
print(tuple(model(torch.ones(1, 2)).shape))

# %%
print(engine.profile_module(torch.nn.Linear(2, 3), [torch.ones(1, 2)], poptorch.Options()))
"""


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory, without_engine: dict[str, str]) -> list[str]:
    lesson = write_lesson(tmp_path_factory.mktemp("refused"), REFUSED)
    return [text.strip() for text in shown(execute(assemble(lesson), lesson.notebook.parent, without_engine))]


def test_the_course_finds_no_engine(spoken: list[str]) -> None:
    assert spoken[0] == "False None None"


def test_neither_cells_nor_the_course_can_import_it(spoken: list[str]) -> None:
    assert spoken[1] == "ipu_model.report ipu_model.step ipu_model"
    assert spoken[2] == "ipu_model"


def test_poptorch_works_all_the_same(spoken: list[str]) -> None:
    assert spoken[3] == "(1, 3)"


def test_a_profile_says_that_there_is_no_model(spoken: list[str]) -> None:
    assert spoken[-1] == "no IPU Model here"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("modelled: 31 ms", ["modelled: 31"]),
        ("<td>modelled</td>\n  <td>31</td>", ["modelled 31"]),
        ("modelled  published [1]", []),
        ("Modelled figures need the course&#x27;s IPU Model.", []),
        ("published: 8 s", []),
    ],
)
def test_a_modelled_figure_is_recognised(text: str, figures: list[str], tmp_path: Path) -> None:
    notebook = assemble(write_lesson(tmp_path, "# %%\n1\n"))
    notebook.cells[0].outputs = [NotebookNode(output_type="display_data", data={"text/html": text}, metadata={})]
    assert [figure.strip() for figure in modelled_figures(notebook)] == figures
