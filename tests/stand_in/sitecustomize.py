"""Put this folder first on PYTHONPATH, and the IPU Model hides: the course sees what it sees on an SDK machine.

There, `poptorch` is Graphcore's package and there is no `ipu_model`. Our `poptorch` stands in for Graphcore's: it may
use the engine that it is made of. The course and the learner's cells may neither find the engine nor import it.
Python imports `sitecustomize` at its start, so this holds in worker processes, too. So does what tools/offline does:
there is no network here either.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

runpy.run_path(str(Path(__file__).parents[2] / "tools" / "offline" / "sitecustomize.py"))

HIDDEN = "ipu_model"
# `__main__` is a notebook's cells.
WITHOUT_ENGINE = ("ipu_course", "__main__")

_find_spec, _import, _import_module = importlib.util.find_spec, builtins.__import__, importlib.import_module


def package(name: str | None) -> str:
    return (name or "").partition(".")[0]


def find_spec(name: str, *arguments: Any) -> Any:
    return None if package(name) == HIDDEN else _find_spec(name, *arguments)


def refuse(name: str, importer: str | None) -> None:
    """Raise what Python raises for a package that is not installed."""
    if package(name) == HIDDEN and package(importer) in WITHOUT_ENGINE:
        raise ModuleNotFoundError(f"No module named {name!r} (it hides from {importer})", name=name)


def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if level == 0:
        refuse(name, (globals or sys._getframe(1).f_globals).get("__name__"))
    return _import(name, globals, locals, fromlist, level)


def import_module(name: str, package: str | None = None) -> Any:
    refuse(name, sys._getframe(1).f_globals.get("__name__"))
    return _import_module(name, package)


importlib.util.find_spec = find_spec
builtins.__import__ = import_
importlib.import_module = import_module
