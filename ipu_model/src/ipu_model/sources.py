"""What commands model: a report's folder, one of its files, or "FILE.py:FUNCTION" or "MODULE:FUNCTION"."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error, OutOfMemory, UnknownParameter, did_you_mean, kind_of
from ipu_model.front_ends import program_behind
from ipu_model.source_lines import line_that_raised
from ipu_model.whole_files import read_whole

if TYPE_CHECKING:
    from ipu_model.explore.what_if import Source
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import Profile

RETURNS = (
    "The function takes no arguments and returns (module, inputs, options), with the optimizer as a fourth item for "
    "training, or a dict of the arguments of ipu_model.profile_module by name."
)
WRITES_REPORT = """POPLAR_ENGINE_OPTIONS='{"autoReport.all":"true","autoReport.directory":"./report"}'"""
"""The setting with which any PopTorch script writes a report."""
_POSITIONS = ("model", "inputs", "options", "optimizer")
_NEEDED = _POSITIONS[:3]
_BY_NAME = (*_POSITIONS, "training", "micro_batch")
_PROFILE = "profile.json"
_FOR_READERS = ("report.html", "trace.json")
"""Files of a report that hold no program to model."""
_MOST_NAMED = 20
_MOST_BYTES = 1 << 24  # of a program


def profile_of_source(source: str, *, host: HostWork | None = None, machine: str | None = None) -> Profile:
    """Return the profile of a report's folder or file, or of "FILE.py:FUNCTION"; a host or machine models it again."""
    if not is_function(source) and host is None and machine is None and not _is_program_file(source):
        from ipu_model.report.files import read

        return read(_report(source))
    from ipu_model.explore.what_if import profile

    given = given_by(source)
    with said_if_slow(f"modelling {source}"):
        return profile(given.program, host=host or given.host, machine=machine)


def given_by(source: str) -> Source:
    """Return what a text stands for, ready to be explored.

    PopTorch's refusals and failures of the user's module are errors of one line; others keep their traceback.
    """
    from ipu_model.explore.what_if import source_of
    from ipu_model.report import program_file
    from ipu_model.report.files import read_report

    if _is_program_file(source):
        return source_of(program_file.read(Path(source)))
    if not is_function(source):
        return source_of(read_report(_report(source)))
    thing, arguments = _sorted(made_by(source), source)
    try:
        with said_if_slow(f"capturing {source}"):
            return source_of(thing, **arguments)
    except Error:
        raise
    except Exception as problem:
        if line_that_raised(problem) is not None:
            raise Error(f"{source}: the module failed: {_described(problem)}.") from problem
        if isinstance(problem, (AssertionError, UnknownParameter)):
            raise Error(f"{source}: {problem.args[0]}") from problem
        raise


def _sorted(made: Any, source: str) -> tuple[Any, Mapping[str, Any]]:
    """Return something that has a program, or a module with its arguments for `source_of`."""
    if isinstance(made, tuple):
        if not len(_NEEDED) <= len(made) <= len(_POSITIONS):
            raise Error(f"{source} returned {len(made)} values. {RETURNS}")
        made = dict(zip(_POSITIONS, made))
    if not isinstance(made, Mapping):
        try:
            program_behind(made)
        except Error as refusal:
            raise Error(f"{source} returned {kind_of(made)}. {RETURNS}") from refusal
        return made, {}
    unknown = [str(name) for name in made if name not in _BY_NAME]
    missing = [name for name in _NEEDED if name not in made]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which it does not take"
        raise Error(f"The dict that {source} returned {wrong}. Its names are {', '.join(_BY_NAME)}.")
    return made["model"], {name: value for name, value in made.items() if name != "model"}


def folder_of_source(source: str) -> Path | None:
    from ipu_model.report.files import file_of

    return None if is_function(source) else file_of(source if _is_program_file(source) else _report(source)).parent


def _is_program_file(source: str) -> bool:
    return source.endswith(".ipu") and not Path(source).is_dir()


def _report(source: str) -> str:
    path = Path(source)
    place = source.rpartition(".py:")[0]
    if source.endswith(".py") or place:
        raise _no_function(Path(f"{place}.py") if place else path)
    if path.is_dir():
        from ipu_model.report.files import file_of

        if not file_of(path).exists():
            deeper = sorted(str(file.parent) for file in path.glob(f"*/*/{_PROFILE}"))
            there = f" There is a report in {', '.join(deeper)}." if deeper else ""
            raise Error(
                f"{path} holds no report: there is no {_PROFILE} in it.{there} Name the folder that profiling wrote "
                f"(run the program with {WRITES_REPORT}), or name a function that returns a program: "
                "program.py:function."
            )
    elif path.name in _FOR_READERS and path.with_name(_PROFILE).exists():
        raise Error(f"{source} holds no program. Name the folder of its report instead: {path.parent}.")
    elif not path.exists():
        beside = [file.name for file in path.parent.glob("*")]
        near = difflib.get_close_matches(path.name, beside, 1)
        hint = f" Did you mean {path.with_name(near[0])}?" if near else ""
        raise Error(
            f"{source} cannot be read: No such file or directory.{hint} A SOURCE is the folder of a report, or a "
            "function as program.py:function."
        )
    return source


def _no_function(file: Path) -> Error:
    if not file.is_file():
        return Error(f"{file} cannot be read: there is no such file.")
    names = _functions_in(file)
    nearest = f"{file}:{names[0] if names else 'FUNCTION'}"
    there = f" Functions without arguments there: {', '.join(names)}." if names else ""
    return Error(
        f"{file} is a program. Name the function in it that returns what to model: {nearest}.{there} Or run it with "
        f"{WRITES_REPORT}, which writes a report: python -m ipu_model report ./report."
    )


def _functions_in(file: Path) -> Sequence[str]:
    """Return the names of a file's public functions that need no arguments and return something; it does not run."""
    try:
        body = ast.parse(read_whole(file, _MOST_BYTES)).body
    except (OSError, SyntaxError, ValueError):
        return ()
    names = []
    for node in body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        given = node.args
        positional = len(given.posonlyargs) + len(given.args) - len(given.defaults)
        needs = positional or any(default is None for default in given.kw_defaults)
        returns = any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(node))
        if returns and not needs:
            names.append(node.name)
    return names


def is_function(source: str) -> bool:
    """Return whether a text is written as "FILE.py:FUNCTION" or "MODULE:FUNCTION"; paths that exist are none."""
    place, colon, name = source.rpartition(":")
    return bool(colon and place and name.isidentifier()) and not Path(source).exists()


def made_by(source: str) -> Any:
    """Call the function of "FILE.py:FUNCTION" and return its result, or the program that it had no room to compile."""
    place, _, name = source.rpartition(":")
    with said_if_slow(f"running {source}"):
        function = _function(_module(place), place, name)
        try:
            return function()
        except (Exception, SystemExit) as problem:
            if isinstance(problem, OutOfMemory) and problem.program is not None:
                return problem.program
            raise Error(f"{source} failed: {_described(problem)}.") from problem


def _module(place: str) -> ModuleType:
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
        raise Error(f"{place} cannot be imported: {_described(problem)}.") from problem


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
    function = getattr(module, name, None)
    if not callable(function):
        own = _functions_in(Path(module.__file__ or "."))
        which = ", ".join(own[:_MOST_NAMED]) or "none that needs no arguments"
        raise Error(f"{place} has no function {name!r}. It has {which}.{did_you_mean(name, own)}")
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in fixed]
    if needed:
        raise Error(
            f"{place}:{name} needs arguments ({', '.join(needed)}), but is called without any. Give them defaults, or "
            f"write a function that calls it: def program(): return {name}(...)"
        )
    return function  # type: ignore[no-any-return]  # of a module that is known only now


def _described(problem: BaseException) -> str:
    if isinstance(problem, SystemExit):
        return "it ended the process; put what a script does under `if __name__ == '__main__':`"
    text = problem.message if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
    line = line_that_raised(problem)
    return " ".join(text.split()).rstrip(".") + (f" ({line})" if line is not None else "")


@contextmanager
def said_if_slow(doing: str, *, patience: float = 0.5) -> Iterator[None]:
    """Show on a terminal what is being done, and for how many seconds, once it takes longer than `patience` seconds."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        began, width, wait = time.monotonic(), 0, patience
        while not ended.wait(wait):
            line = f"{doing}: {time.monotonic() - began:.0f} s"
            width, wait = max(width, len(line)), 1.0
            print(f"\r{line.ljust(width)}", end="", file=sys.stderr, flush=True)
        if width:
            print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
