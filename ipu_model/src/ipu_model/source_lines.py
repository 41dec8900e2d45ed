"""Find the line of the user's program that is running or raised an error: the innermost one outside the libraries."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
import traceback
from dataclasses import dataclass
from types import FrameType

# Top-level packages whose lines do not help a user; the last three only wrap functions and load modules.
_libraries = {"torch", "ipu_model", "contextlib", "functools", "importlib"}
_SHOWN = 100


@dataclass(frozen=True)
class SourceLine:
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
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def line_that_raised(error: BaseException) -> SourceLine | None:
    """Return the user's line that raised an exception, or that called the code that raised it."""
    line = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _is_users(frame):
            line = SourceLine(frame.f_code.co_filename, number, frame.f_code.co_name)
    return line


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _libraries
