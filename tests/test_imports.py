"""Imports point one way, ipu_course -> popdist -> poptorch -> ipu_model, and never in a circle.

Imports inside functions and those for type checkers count. The engine names no module of the others in a string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from graphlib import CycleError, TopologicalSorter

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {name: ROOT / "ipu_model" / "src" / name for name in ("ipu_model", "poptorch", "popdist")}
FOLDERS["ipu_course"] = ROOT / "src" / "ipu_course"
FOLDERS |= {name: ROOT / "ipu_model" / "src" / f"{name}.py" for name in ("popart", "horovod")}  # modules of their own
MAY_IMPORT = {
    "ipu_model": {"ipu_model"},
    "poptorch": {"poptorch", "ipu_model"},
    "popdist": {"popdist", "poptorch", "ipu_model"},
    "popart": {"popart", "poptorch", "ipu_model"},
    "horovod": {"horovod", "popdist", "ipu_model"},
    "ipu_course": {"ipu_course", "popdist", "poptorch", "ipu_model"},
}
MODULES = {
    ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for folder in FOLDERS.values()
    for file in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
}


def imported_by(module: str) -> Iterator[str]:
    """Yield the modules of the four packages that a module imports, wherever in its text it does."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            # What is taken from a package may be a module of it, or a name in its __init__.
            names = [whole if (whole := f"{base}.{alias.name}") in MODULES else base for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
        else:
            continue
        yield from (name for name in names if name in MODULES and name != module)


GRAPH = {module: set(imported_by(module)) for module in MODULES}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_none_that_is_built_on_it(package: str) -> None:
    found = [
        f"{module} -> {other}"
        for module, others in GRAPH.items()
        for other in sorted(others)
        if module.split(".")[0] == package and other.split(".")[0] not in MAY_IMPORT[package]
    ]
    assert found == []


def test_the_engine_names_no_module_of_the_others_in_a_string() -> None:
    strings = [
        node.value
        for module in MODULES
        if module.split(".")[0] == "ipu_model"
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [each for each in strings if each in MODULES and each.split(".")[0] != "ipu_model"] == []


def test_no_import_leads_back_to_where_it_began() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as found:
        pytest.fail(" -> ".join(reversed(found.args[1])))


def test_every_kind_of_import_is_found() -> None:
    """At the top, inside a function, and for type checkers only, in modules of this project that have one."""
    assert len(MODULES) > 100
    assert "poptorch" in GRAPH["ipu_course.lessons.pipelining_mnist.placements"]
    assert "ipu_course.programs.doctor.examination" in GRAPH["ipu_course.programs.doctor"]
    assert any(other.startswith("ipu_model.") for other in GRAPH["ipu_course.engine"])


def test_none_of_the_three_packages_needs_torchvision() -> None:
    """It is installed with the extra `validate` only, for the published programs in ipu_model/validation."""
    imports = re.compile(r"^\s*(?:from|import) torchvision\b", re.MULTILINE)
    users = [name for name, file in MODULES.items() if imports.search(file.read_text(encoding="utf-8"))]
    assert [name for name in users if not name.startswith("ipu_course.")] == []
