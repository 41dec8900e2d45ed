"""Find the tests that cannot run here for reasons outside `poptorch`: native builds, hardware, PyTorch Geometric."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

# How a test shows that it needs something compiled for PopART or Poplar. A leading underscore of a module name is
# none of these.
_NATIVE = re.compile(
    r"ctypes\.cdll|\bcdll\b|\bCDLL\b|LoadLibrary|load_library|cppimport|cpp_extension|setCustomCodeletsPath"
    r"|\blib\w*\.(so|\*)|\.gp\b"
)
_HARDWARE_MARKERS = frozenset({"ipuHardwareRequired", "hardwareRequired", "ipu_hardware"})
# A test that imports one of these is skipped if it is not installed.
OPTIONAL = frozenset({
    "poptorch_geometric", "torch_geometric", "torch_cluster", "torch_scatter", "torch_sparse", "torch_spline_conv",
    "torchvision", "torchaudio", "transformers", "pytorch_lightning", "lightning", "pva", "horovod", "mpi4py", "timm",
})  # fmt: skip

_NEEDS_BUILD = "needs a native build"
_NEEDS_HARDWARE = "needs hardware"


def missing_package(name: str) -> str | None:
    """Return why a test file that fails to import `name` is left out, or None if that is a failure."""
    package = name.partition(".")[0]
    return f"needs {package}" if package in OPTIONAL else None


@dataclass(frozen=True)
class FileRules:
    """What one test file needs: all of it (`whole`), or functions by their names."""

    whole: str | None
    functions: Mapping[str, str]

    def reason(self, function: str, markers: Iterable[str]) -> str | None:
        """Return why the test function is left out, or None."""
        if self.whole is not None:
            return self.whole
        if not _HARDWARE_MARKERS.isdisjoint(markers):
            return _NEEDS_HARDWARE
        return self.functions.get(function)


def rules_of(source: str) -> FileRules:
    """Find what the tests of a file need from its source."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return FileRules(None, {})  # pytest reports the error
    for name in _imports(tree):
        if missing_package(name) is not None and find_spec(name.partition(".")[0]) is None:
            return FileRules(missing_package(name), {})
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    outside = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    if any(_NATIVE.search(_code(node)) for node in outside):
        return FileRules(_NEEDS_BUILD, {})
    return FileRules(None, dict.fromkeys(_native_functions(functions), _NEEDS_BUILD))


def _imports(tree: ast.Module) -> Iterable[str]:
    """Yield the modules that the file imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module


def _native_functions(functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """Return the functions that load something compiled, and those that use such a function."""
    found = {name for name, node in functions.items() if _NATIVE.search(_code(node))}
    grows = bool(found)
    while grows:
        using = {name for name, node in functions.items() if not found.isdisjoint(_names_in(node))}
        grows = not using <= found
        found |= using
    return found


def _names_in(node: ast.AST) -> set[str]:
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    # A fixture is used by naming it as a parameter.
    return names | {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}


def _code(node: ast.AST) -> str:
    """Return the code of a node, without comments."""
    return ast.unparse(node)
