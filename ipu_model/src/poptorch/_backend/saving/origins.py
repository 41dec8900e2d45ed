"""Where code comes from: installed packages, known by their versions, or the program itself."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ipu_model

IMPURE_BUILTINS = frozenset({"open", "input", "eval", "exec", "__import__", "globals", "id", "vars", "locals"})
# What these give may differ from one process to the next.
_IMPURE_MODULES = frozenset({
    "os", "posix", "nt", "random", "time", "datetime", "secrets", "uuid", "socket", "subprocess", "io", "pathlib",
    "pickle", "tempfile", "platform", "importlib", "inspect", "gc", "threading", "multiprocessing", "posixpath",
})  # fmt: skip
_OWN = ("poptorch", "ipu_model")


class NotRepeatable(Exception):
    """What a trace depends on cannot be told; the text names the cause."""


def environment() -> tuple[object, ...]:
    """Return what decides a trace outside the program: versions, and PyTorch's settings of the moment."""
    return (
        sys.version_info[:3], sys.implementation.name, torch.__version__, own_sources(), torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), str(torch.get_default_device()),
        torch.are_deterministic_algorithms_enabled(), torch.backends.mha.get_fastpath_enabled(),
    )  # fmt: skip


def refuse_impure(value: Any, names: frozenset[str] = frozenset()) -> None:
    """Refuse a module, or a class or function of one, that may tell each process something else.

    `names` are what the code reads, of a module as of anything else.

    Raises:
        NotRepeatable: names it.
    """
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    top = name.partition(".")[0]
    if top in _IMPURE_MODULES or (top == "numpy" and "random" in (*names, *name.split("."))):
        raise NotRepeatable(f"forward may use {getattr(value, '__qualname__', name)} of the module {name}")


@cache
def version_of(module: str) -> str | None:
    """Return name and version of the package that has `module`; `None` for code that has no version of its own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return top
    if top in _OWN:
        return f"{top} {own_sources()}"
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    if not {"site-packages", "dist-packages"} & set(Path(file).parts):
        return None
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules.get(top), "__version__", None)
        return None if version is None else f"{top} {version}"


@cache
def own_sources() -> str:
    """Return a digest of the source files of the engine and of this package: any change may change a trace."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in (Path(str(ipu_model.__file__)).parent, Path(__file__).parent.parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
