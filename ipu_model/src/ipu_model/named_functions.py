"""Functions of a user's program, named as "FILE.py:FUNCTION" or "MODULE:FUNCTION": each file runs once."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ipu_model.commands.slow_work import said_if_slow
from ipu_model.errors import Error, OutOfMemory
from ipu_model.predict.program import Program
from ipu_model.source_lines import line_that_raised

_MOST_NAMED = 20


def is_function(source: str) -> bool:
    """Return whether a text is written as "FILE.py:FUNCTION" or "MODULE:FUNCTION"; paths that exist are none."""
    place, colon, name = source.rpartition(":")
    return bool(colon and place and name.isidentifier()) and not Path(source).exists()


def made_by(source: str) -> Any:
    """Import the file or module of "FILE.py:FUNCTION", call the function and return what it returns.

    A function that compiles a program without room for it gives that program.

    Raises:
        Error: there is no such function, it needs arguments, or it fails; names the line.
    """
    place, _, name = source.rpartition(":")
    with said_if_slow(f"running {source}"):
        function = _function(_module(place), place, name)
        try:
            return function()
        except OutOfMemory as problem:
            if isinstance(problem.program, Program):
                return problem.program
            raise Error(f"{source} failed: {described(problem)}.") from problem
        except (Exception, SystemExit) as problem:
            raise Error(f"{source} failed: {described(problem)}.") from problem


def functions_in(file: Path) -> Sequence[str]:
    """Return the names of a file's public functions that need no arguments and return something; it does not run."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ()
    return [each.name for each in body if isinstance(each, ast.FunctionDef) and _makes_something(each)]


def _makes_something(function: ast.FunctionDef) -> bool:
    given = function.args
    positional = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    needs = positional or any(default is None for default in given.kw_defaults)
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(function))
    return returns and not needs and not function.name.startswith("_")


def _module(place: str) -> ModuleType:
    """Import a file or a module by its name, with its folder where Python looks for modules."""
    file = Path(place)
    folder = str(file.resolve().parent) if place.endswith(".py") else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not file.is_file():
            raise Error(f"{place} cannot be read: there is no such file.")
        return _imported_file(file.resolve(), file.stat().st_mtime_ns)
    except Error:
        raise
    except (Exception, SystemExit) as problem:
        raise Error(f"{place} cannot be imported: {described(problem)}.") from problem


@lru_cache(maxsize=32)
def _imported_file(file: Path, written: int) -> ModuleType:
    """Import a file; `written`, the time of its last change, tells apart what it holds at different times."""
    name = f"{file.stem}_of_the_user" if file.stem in sys.modules else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import would: data classes and pickles look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if not callable(found):
        own = [each for each, value in vars(module).items() if inspect.isfunction(value) and _is_of(module, value)]
        raise Error(f"{place} has no function {name!r}. {_nearest(name, own)}")
    parameters = inspect.signature(found).parameters.values()
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in fixed]
    if needed:
        raise Error(
            f"{place}:{name} needs arguments ({', '.join(needed)}), but is called without any. Give them defaults, or "
            f"write a function that calls it: def program(): return {name}(...)"
        )
    return found  # type: ignore[no-any-return]  # of a module that is known only now


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the functions that a module has: those with similar names if there are many."""
    if not known:
        return "It has no functions."
    if len(known) <= _MOST_NAMED:
        return f"It has {', '.join(known)}."
    near = difflib.get_close_matches(name, known, 1)
    return f"It has {len(known)} functions." + (f" Did you mean {near[0]}?" if near else "")


def _is_of(module: ModuleType, value: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not value.__name__.startswith("_")  # type: ignore[attr-defined]


def described(problem: BaseException) -> str:
    """Return the type, message and line of a user's exception, in one line."""
    if isinstance(problem, SystemExit):
        return "it ended the process; put what a script does under `if __name__ == '__main__':`"
    text = problem.message if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
    line = line_that_raised(problem)
    return " ".join(text.split()).rstrip(".") + (f" ({line})" if line is not None else "")
