"""Dependencies point one way: ipu_course -> poptorch -> ipu_model."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ipu_model
import poptorch

ENGINE = Path(ipu_model.__file__).parent
API = Path(poptorch.__file__).parent


def imported(file: Path) -> set[str]:
    """Return the first parts of all absolute imports in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("file", sorted(ENGINE.rglob("*.py")), ids=lambda f: str(f.relative_to(ENGINE)))
def test_the_engine_knows_neither_poptorch_nor_the_course_nor_plotting(file) -> None:
    assert not imported(file) & {"poptorch", "popdist", "ipu_course", "torchvision"}


@pytest.mark.parametrize("file", sorted(API.rglob("*.py")), ids=lambda f: str(f.relative_to(API)))
def test_poptorch_does_not_know_the_course(file) -> None:
    assert not imported(file) & {"ipu_course", "torchvision"}


def test_private_torch_names_stay_in_one_file() -> None:
    private = ("_get_sequence_nr", "_current_graph_task_id", "_sequence_nr(", "_subclasses", "_python_dispatch",
               "_set_mkldnn_enabled")  # fmt: skip
    users = {
        str(file.relative_to(ENGINE))
        for file in ENGINE.rglob("*.py")
        if any(name in file.read_text(encoding="utf-8") for name in private)
    }
    assert users == {"capture/torch_private.py"}


@pytest.mark.parametrize("file", sorted([*ENGINE.rglob("*.py"), *API.rglob("*.py")]), ids=lambda f: f.name)
def test_files_hold_one_idea(file) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
