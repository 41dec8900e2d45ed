"""Packages that programs expect beside PopTorch. Each is found only where no package of its name is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_FOLDER = str(Path(__file__).resolve().parent)


class _Finder(MetaPathFinder):
    """The last of Python's finders: asked for what none of the others has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [_FOLDER]) if fullname == "horovod" else None


def offer() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def offered_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a program find the stand-ins from its first line on.

    There are none if a package of that name is installed: what `PYTHONPATH` names comes before installed packages.
    """
    if PathFinder.find_spec("horovod") is not None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), _FOLDER)))}
