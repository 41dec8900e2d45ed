"""Find the line of the user's program that is running or raised an error: the innermost one outside the libraries."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
from dataclasses import dataclass
from types import CodeType, FrameType

# Top-level packages whose lines do not help a user; the last three only wrap functions and load modules.
_libraries = {"torch", "ipu_model", "contextlib", "functools", "importlib"}
_SHOWN = 100


@dataclass(frozen=True)
class SourceLine:
    """A line of a function in a file."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        text = textwrap.shorten(linecache.getline(self.file, self.number), _SHOWN, placeholder=" ...")
        # IPython names the file of a cell after the text of the cell.
        folder, file = os.path.split(self.file)
        where = "a cell" if os.path.basename(folder).startswith("ipykernel_") else file
        place = f"line {self.number} of {self.function} in {where}"
        return f"{place}: {text}" if text else place


def skip_package(name: str) -> None:
    """From now on, treat the lines of a top-level package as a library's."""
    _libraries.add(name)


def line_running() -> SourceLine | None:
    """Return the user's line that is being executed in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def line_that_raised(error: BaseException) -> SourceLine | None:
    """Return the user's line that raised an exception, or that called the code that raised it."""
    found, step = None, error.__traceback__
    while step is not None:
        if _is_users(step.tb_frame):
            found = _line(step.tb_frame.f_code, step.tb_lineno)
        step = step.tb_next
    return found


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _libraries


def _line(code: CodeType, number: int) -> SourceLine:
    return SourceLine(code.co_filename, number, code.co_name)
