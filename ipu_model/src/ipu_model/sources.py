"""What the commands model: the folder of a report, one of its files, or a function that returns a program."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.commands.slow_work import said_if_slow
from ipu_model.errors import Error, UnknownParameter, kind_of
from ipu_model.front_ends import program_behind

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
_PROFILE = "profile.json"
_FOR_READERS = ("report.html", "trace.json")
"""Files of a report that hold no program to model."""
_BY_NAME = (*_POSITIONS, "training", "micro_batch")


def profile_of_source(source: str, *, host: HostWork | None = None, machine: str | None = None) -> Profile:
    """Return the profile of a report's folder or file, or of a function as "FILE.py:FUNCTION".

    With a `host` or a `machine` the program is modelled again, for which a report must hold it.

    Raises:
        Error: nothing there can be read, or it is no program.
    """
    from ipu_model.named_functions import is_function

    if not is_function(source) and host is None and machine is None and not _is_program_file(source):
        from ipu_model.report.files import read

        return read(_report(source))
    from ipu_model.explore.what_if import host_work_of, profile

    given = given_by(source)
    program = given.source().program
    with said_if_slow(f"modelling {source}"):
        return profile(program, host=host_work_of(given.thing, host), machine=machine)


@dataclass(frozen=True)
class Given:
    """What a source called `name` stands for: something that has a program, or a module with its `arguments`."""

    name: str
    thing: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def source(self) -> Source:
        """Return its program, with its module if there is one, as `advise` and `make_it_fit` take it.

        Raises:
            Error: what PopTorch refuses when it compiles, such as rows that do not divide into micro-batches.
        """
        from ipu_model.explore.what_if import source_of

        arguments = dict(self.arguments)
        with _refusals_named(self.name), said_if_slow(f"capturing {self.name}"):
            return source_of(self.thing, arguments.pop("inputs", None), arguments.pop("options", None), **arguments)


def given_by(source: str) -> Given:
    """Return the profile of a report, or what a function returns.

    Raises:
        Error: nothing there can be read, or a function returns no program.
    """
    from ipu_model.named_functions import is_function, made_by

    if is_function(source):
        return _given(made_by(source), source)
    if _is_program_file(source):
        from ipu_model.report import program_file

        return Given(source, program_file.read(source))
    from ipu_model.report.files import read_report

    profile = read_report(_report(source))
    if profile.program is None:
        raise Error(
            f"{source} holds only results, and not the program that they belong to. Name the folder that profiling "
            "wrote, run the program again, or name a function that returns it: program.py:function."
        )
    return Given(source, profile)


@contextmanager
def _refusals_named(source: str) -> Iterator[None]:
    """Turn what PopTorch refuses and what fails in the user's module into an error in one line.

    PopTorch's refusals are assertions (rows that do not divide into micro-batches) and, for parameters of an optimizer
    that are none of the model, an `UnknownParameter`. A failure of the module itself, such as shapes that do not match,
    has a line of the user's; what has none keeps its traceback, because the fault is here.

    Raises:
        Error: names the source.
    """
    from ipu_model.named_functions import described
    from ipu_model.source_lines import line_that_raised

    try:
        yield
    except Error:
        raise
    except Exception as problem:
        if line_that_raised(problem) is not None:
            raise Error(f"{source}: the module failed: {described(problem)}.") from problem
        if isinstance(problem, (AssertionError, UnknownParameter)):
            raise Error(f"{source}: {problem.args[0]}") from problem
        raise


def folder_of_source(source: str) -> Path | None:
    """Return the folder of a report; a function has none.

    Raises:
        Error: there is no report.
    """
    from ipu_model.named_functions import is_function

    if is_function(source):
        return None
    if _is_program_file(source):
        return Path(source).parent
    from ipu_model.report.files import file_of

    return file_of(_report(source)).parent


def _is_program_file(source: str) -> bool:
    return source.endswith(".ipu") and not Path(source).is_dir()


def _report(source: str) -> str:
    """Return the path of a report, if there is one.

    Raises:
        Error: there is none; says what is there, and what comes nearest.
    """
    path = Path(source)
    place = source.rpartition(".py:")[0]
    if source.endswith(".py") or place:
        raise _no_function(Path(f"{place}.py") if place else path)
    if path.is_dir():
        from ipu_model.report.files import file_of

        if not file_of(path).exists():
            raise _no_report(path)
    elif path.name in _FOR_READERS and path.with_name(_PROFILE).exists():
        raise Error(f"{source} holds no program. Name the folder of its report instead: {path.parent}.")
    elif not path.exists():
        near = difflib.get_close_matches(path.name, _names_in(path.parent), 1)
        hint = f" Did you mean {path.with_name(near[0])}?" if near else ""
        raise Error(
            f"{source} cannot be read: No such file or directory.{hint} A SOURCE is the folder of a report, or a "
            "function as program.py:function."
        )
    return source


def _no_function(file: Path) -> Error:
    """Return the error of a program without the name of a function; says which functions it has."""
    if not file.is_file():
        return Error(f"{file} cannot be read: there is no such file.")
    from ipu_model.named_functions import functions_in

    found = functions_in(file)
    nearest = f"{file}:{found[0] if found else 'FUNCTION'}"
    there = f" Functions without arguments there: {', '.join(found)}." if found else ""
    return Error(
        f"{file} is a program. Name the function in it that returns what to model: {nearest}.{there} Or run it with "
        f"{WRITES_REPORT}, which writes a report: python -m ipu_model report ./report."
    )


def _no_report(folder: Path) -> Error:
    """Return the error of a folder without a report; names reports that lie deeper."""
    deeper = sorted(str(each.parent) for each in folder.glob(f"*/*/{_PROFILE}"))
    there = f" There is a report in {', '.join(deeper)}." if deeper else ""
    return Error(
        f"{folder} holds no report: there is no {_PROFILE} in it.{there} Name the folder that profiling wrote (run "
        f"the program with {WRITES_REPORT}), or name a function that returns a program: program.py:function."
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return []


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
        return Given(source, made)
    unknown = [str(name) for name in made if name not in _BY_NAME]
    missing = [name for name in _NEEDED if name not in made]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which it does not take"
        raise Error(f"The dict that {source} returned {wrong}. Its names are {', '.join(_BY_NAME)}.")
    return Given(source, made["model"], {name: value for name, value in made.items() if name != "model"})
