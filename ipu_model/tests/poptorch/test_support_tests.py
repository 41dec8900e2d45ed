"""The support table against the package's classes and the tests: complete, and each name that works is tested."""

from __future__ import annotations

import ast
import inspect
import json
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import poptorch
from poptorch._backend import support

ENTRIES = [(area, entry) for area in support.table() for entry in area.entries]
IDS = [f"{area.prefix}.{entry.name}" for area, entry in ENTRIES]
# Of the strategies, what options and compilation ask them: PopTorch has others here.
INTERNAL = {"backendOptions", "begin_trace", "note_blocks", "phase_number", "place", "total_phases", "use_auto_id"}
# Written with a prefix of their own in the table, and looked at above.
ELSEWHERE = {"DataLoader", "AsynchronousDataAccessor", "Options", "PoplarExecutor", "TensorLocationSettings"}
# Shared by every optimiser, with PyTorch's meaning.
PYTORCHS = {"load_state_dict", "state_dict", "copy"}
# Shared by every optimiser, and in the table once, for their base.
SHARED = {"get_state_dict", "set_state_dict", "has_state"}


def public_classes() -> list[type]:
    """Return the classes that PopTorch programs make objects of, or derive from."""
    modules = (poptorch, poptorch.optim, poptorch.profiling)
    found = {
        (value.__name__, value) for module in modules for name, value in vars(module).items()
        if inspect.isclass(value) and not name.startswith("_") and value.__module__.startswith("poptorch")
    }  # fmt: skip
    return [kind for name, kind in sorted(found, key=lambda pair: pair[0]) if name not in ELSEWHERE]


def own_members(kind: type) -> list[str]:
    """Return the public members of a class that it does not have from PyTorch or Python, as programs write them."""
    foreign = [base for base in kind.__mro__ if not base.__module__.startswith("poptorch")]
    inherited = {name for base in foreign for name in dir(base)} | INTERNAL | PYTORCHS
    inherited |= set() if kind is poptorch.optim.Optimizer else SHARED
    if issubclass(kind, Enum):
        return []
    module = {"optim": "poptorch.optim", "profiling": "poptorch.profiling"}.get(
        kind.__module__.split(".")[1], "poptorch"
    )
    return [
        f"{module}.{kind.__name__}.{name}" for name in dir(kind) if not name.startswith("_") and name not in inherited
    ]


class TestMembers:
    def test_no_class_has_a_public_member_that_is_not_in_the_table(self) -> None:
        missing = [name for kind in public_classes() for name in own_members(kind) if support.status_of(name) is None]
        assert missing == []

    @pytest.mark.parametrize("module", [poptorch.optim, poptorch.profiling, poptorch.testing], ids=lambda m: m.__name__)
    def test_every_name_of_a_sub_module_is_in_the_table(self, module: Any) -> None:
        own = [
            name for name, value in vars(module).items()
            if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__.startswith(module.__name__)
        ]  # fmt: skip
        assert own
        assert [name for name in own if support.status_of(f"{module.__name__}.{name}") is None] == []


SHOWN = [entry for _, entry in ENTRIES if entry.status in ("works", "approximated")]
TESTS = Path(__file__).parent.parent


def definition(test: str) -> ast.FunctionDef | None:
    """Return the function that `file::class::function` names, or `None` if there is none."""
    file, *path = test.split("::")
    found: Any = next(iter(_modules().get(file, ())), None)
    for name in path:
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = next((n for n in getattr(found, "body", ()) if isinstance(n, kinds) and n.name == name), None)
    return found if isinstance(found, ast.FunctionDef) else None


@cache
def _modules() -> dict[str, list[ast.Module]]:
    found: dict[str, list[ast.Module]] = {}
    for file in sorted(TESTS.glob("*/test_*.py")):
        found.setdefault(file.name, []).append(ast.parse(file.read_text(encoding="utf-8")))
    return found


class TestTests:
    """Every name that works says which test shows it."""

    @pytest.mark.parametrize("entry", SHOWN, ids=[n for n, (_, e) in zip(IDS, ENTRIES) if e in SHOWN])
    def test_the_test_of_a_name_exists(self, entry: support.Entry) -> None:
        function = definition(entry.test)
        assert function is not None, f"{entry.name}: data/support_tests.json needs file::function, not {entry.test!r}"
        assert function.name.startswith("test_")

    def test_no_test_is_named_for_a_name_that_is_not_in_the_table(self) -> None:
        tests = json.loads((Path(poptorch.__file__).parent / "data" / "support_tests.json").read_text("utf-8"))
        assert [name for name in tests if support.status_of(name) is None] == []

    @pytest.mark.parametrize(
        "test",
        ["", "test_support.py", "test_nothing.py::test_x", "test_support.py::test_x", "test_support.py::TestTests"],
    )
    def test_what_is_no_test_is_noticed(self, test: str) -> None:
        assert definition(test) is None

    def test_names_of_files_are_unique(self) -> None:
        assert [file for file, modules in _modules().items() if len(modules) > 1] == []
