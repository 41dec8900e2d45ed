"""What the commands model: the folder of a report, a `profile.json`, or a function that returns a program."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ipu_model.entry_points import kind_of, program_behind, program_of_module
from ipu_model.errors import Error
from ipu_model.source_lines import line_that_raised

if TYPE_CHECKING:
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import Profile
    from ipu_model.predict.program import Program

RETURNS = (
    "It takes no arguments and returns (module, inputs, options), for training with the optimizer as the fourth, or "
    "a dict of the arguments of ipu_model.profile_module by name."
)
_POSITIONS = ("model", "inputs", "options", "optimizer")
_NEEDED = _POSITIONS[:3]
_BY_NAME = (*_POSITIONS, "training", "micro_batch")


def profile_of_source(source: str, *, host: HostWork | None = None, machine: str | None = None) -> Profile:
    """Return the profile of a report's folder, of a `profile.json`, or of a function as "FILE.py:FUNCTION".

    With a `host` or a `machine` the program is modelled again, for which a report must hold it.

    Raises:
        Error: nothing there can be read, or it is no program.
    """
    if not is_function(source) and host is None and machine is None:
        from ipu_model.report import profile_json

        return profile_json.read(_report(source))
    from ipu_model.explore.profiling import profile

    with refusals_named(source):
        given = given_by(source)
        return profile(given.program() if given.arguments else given.thing, host=host, machine=machine)


@dataclass(frozen=True)
class Given:
    """What a source stands for: something that has a program, or a module with the `arguments` that make it one.

    `ipu_model.advise` and `ipu_model.make_it_fit` take it as `(thing, **arguments)`.
    """

    thing: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def program(self) -> Program:
        """Return its program.

        Raises:
            Error: what PopTorch refuses when it compiles.
            AssertionError: rows that do not divide into micro-batches, unknown blocks.
        """
        if not self.arguments:
            return program_behind(self.thing)
        arguments = dict(self.arguments)
        return program_of_module(arguments.pop("options"), self.thing, arguments.pop("inputs"), **arguments)


def given_by(source: str) -> Given:
    """Return the profile of a report, or what a function returns.

    Raises:
        Error: nothing there can be read, or a function returns no program.
    """
    if is_function(source):
        return _given(made_by(source), source)
    from ipu_model.report.files import read_report

    profile = read_report(_report(source))
    if profile.program is None:
        raise Error(
            f"{source} holds only results, without the program that they are of. Take the folder that profiling wrote, "
            "run the program again, or name a function that returns it: program.py:function."
        )
    return Given(profile)


@contextmanager
def refusals_named(source: str) -> Iterator[None]:
    """Turn an assertion of PopTorch's, such as rows that do not divide into micro-batches, into an error in one line.

    Raises:
        Error: names the source.
    """
    try:
        yield
    except AssertionError as refusal:
        raise Error(f"{source}: {refusal}") from refusal


def folder_of_source(source: str) -> Path | None:
    """Return the folder of a report; a function has none."""
    if is_function(source):
        return None
    from ipu_model.report.profile_json import file_of

    return file_of(source).parent


def is_function(source: str) -> bool:
    """Return whether a source is written as "FILE.py:FUNCTION" or "MODULE:FUNCTION"; paths that exist are none."""
    place, colon, name = source.rpartition(":")
    return bool(colon and place and name.isidentifier()) and not Path(source).exists()


def _report(source: str) -> str:
    """Return the path of a report, if it is none of a program's text."""
    if source.endswith(".py"):
        raise Error(f"{source} is a program. Name the function in it that returns what to model: {source}:FUNCTION.")
    return source


def made_by(source: str) -> Any:
    """Import the file or module of "FILE.py:FUNCTION", call the function and return what it returns.

    Raises:
        Error: there is no such function, it needs arguments, or it fails; names the line.
    """
    place, _, name = source.rpartition(":")
    function = _function(_module(place), place, name)
    try:
        return function()
    except (Exception, SystemExit) as problem:
        raise Error(f"{source} failed: {_described(problem)}.") from problem


def _module(place: str) -> ModuleType:
    """Import a file or a module by its name, with its folder where Python looks for modules."""
    file = Path(place)
    sys.path.insert(0, str(file.resolve().parent) if place.endswith(".py") else os.getcwd())
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not file.is_file():
            raise Error(f"{place} cannot be read: there is no such file.")
        name = f"{file.stem}_of_the_user" if file.stem in sys.modules else file.stem
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # as an import would: data classes and pickles look for it there
        spec.loader.exec_module(module)
    except Error:
        raise
    except (Exception, SystemExit) as problem:
        raise Error(f"{place} cannot be imported: {_described(problem)}.") from problem
    return module


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if not callable(found):
        own = [each for each, value in vars(module).items() if inspect.isfunction(value) and _is_of(module, value)]
        there = f" It has {', '.join(own)}." if own else " It has no functions."
        raise Error(f"{place} has no function {name!r}.{there}")
    parameters = inspect.signature(found).parameters.values()
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in fixed]
    if needed:
        raise Error(f"{place}:{name} needs arguments ({', '.join(needed)}), but is called without any.")
    return found  # type: ignore[no-any-return]  # of a module that is known only now


def _is_of(module: ModuleType, value: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not value.__name__.startswith("_")  # type: ignore[attr-defined]


def _described(problem: BaseException) -> str:
    """Return the type, message and line of a user's exception, in one line."""
    if isinstance(problem, SystemExit):
        return "it ended the process; put what a script does under `if __name__ == '__main__':`"
    text = problem.message if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
    line = line_that_raised(problem)
    return " ".join(text.split()).rstrip(".") + (f" ({line})" if line is not None else "")


def _given(made: Any, source: str) -> Given:
    """Return what a function has returned, sorted: a module with its arguments, or something that has a program.

    Raises:
        Error: it is neither.
    """
    if isinstance(made, tuple):
        if not len(_NEEDED) <= len(made) <= len(_POSITIONS):
            raise Error(f"{source} returned {len(made)} values. {RETURNS}")
        made = dict(zip(_POSITIONS, made))
    if not isinstance(made, Mapping):
        try:
            program_behind(made)
        except Error as refusal:
            raise Error(f"{source} returned {kind_of(made)}. {RETURNS}") from refusal
        return Given(made)
    unknown = [str(name) for name in made if name not in _BY_NAME]
    missing = [name for name in _NEEDED if name not in made]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which it does not take"
        raise Error(f"The dict that {source} returned {wrong}. Its names are {', '.join(_BY_NAME)}.")
    return Given(made["model"], {name: value for name, value in made.items() if name != "model"})
