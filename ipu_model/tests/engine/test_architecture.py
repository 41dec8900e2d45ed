"""Dependencies point one way: ipu_course -> popdist -> poptorch -> ipu_model."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ipu_model
import popdist
import poptorch

ENGINE = Path(ipu_model.__file__).parent
API = Path(poptorch.__file__).parent
DISTRIBUTION = Path(popdist.__file__).parent


def imported(file: Path) -> set[str]:
    """Return the first parts of all absolute imports in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def imported_modules(file: Path, known: set[str]) -> set[str]:
    """Return the modules among `known` that a file imports, also inside functions and for type checkers only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known or {node.module}
    return found & known


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Also where a circle would do no harm, as in functions: whoever reads one file of it would have to read all."""
    folder = ENGINE.parent
    files = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
        for package in (ENGINE, API, DISTRIBUTION)
        for file in package.rglob("*.py")
    }
    edges = {name: imported_modules(file, set(files)) for name, file in files.items()}
    TopologicalSorter(edges).prepare()  # It raises CycleError, with the circle.


@pytest.mark.parametrize("file", sorted(ENGINE.rglob("*.py")), ids=lambda f: str(f.relative_to(ENGINE)))
def test_the_engine_knows_neither_poptorch_nor_the_course(file) -> None:
    assert not imported(file) & {"poptorch", "popdist", "ipu_course"}


def test_only_the_published_programs_need_torchvision() -> None:
    users = {str(file.relative_to(ENGINE)) for file in ENGINE.rglob("*.py") if "torchvision" in imported(file)}
    assert users == {"validate/programs.py"}


@pytest.mark.parametrize("file", sorted(API.rglob("*.py")), ids=lambda f: str(f.relative_to(API)))
def test_poptorch_knows_neither_popdist_nor_the_course(file) -> None:
    assert not imported(file) & {"popdist", "ipu_course", "torchvision"}


@pytest.mark.parametrize("file", sorted(DISTRIBUTION.rglob("*.py")), ids=lambda f: str(f.relative_to(DISTRIBUTION)))
def test_popdist_does_not_know_the_course(file) -> None:
    assert not imported(file) & {"ipu_course", "torchvision"}


def test_poprun_itself_needs_no_torch() -> None:
    """It starts, and tells mistakes, at once; agents import torch when there is something to run."""
    program = "import sys, popdist.run.command, popdist.run.agent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_private_torch_names_stay_in_one_file() -> None:
    private = ("_get_sequence_nr", "_current_graph_task_id", "_sequence_nr(", "_subclasses", "_python_dispatch",
               "_set_mkldnn_enabled")  # fmt: skip
    users = {
        str(file.relative_to(ENGINE))
        for file in ENGINE.rglob("*.py")
        if any(name in file.read_text(encoding="utf-8") for name in private)
    }
    assert users == {"capture/torch_private.py"}


def test_names_below_torch_distributed_stay_in_one_file() -> None:
    private = ("ProcessGroupGloo", "_distributed_c10d", "dist.rendezvous")
    users = {
        str(file.relative_to(ENGINE.parent))
        for folder in (ENGINE, API, DISTRIBUTION)
        for file in folder.rglob("*.py")
        if any(name in file.read_text(encoding="utf-8") for name in private)
    }
    assert users == {"ipu_model/instances/gloo.py"}
