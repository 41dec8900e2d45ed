"""Find the line of the user's program that is running or raised an error: the innermost one outside the libraries."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
import traceback
from collections.abc import Iterable
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
        linecache.checkcache(self.file)  # it may have been edited, and its module reloaded
        text = textwrap.shorten(linecache.getline(self.file, self.number), _SHOWN, placeholder=" ...")
        # IPython names the file of a cell after the text of the cell.
        folder, file = os.path.split(self.file)
        where = "a cell" if os.path.basename(folder).startswith("ipykernel_") else file
        place = f"line {self.number} of {self.function} in {where}"
        return f"{place}: {text}" if text else place


def skip_package(name: str) -> None:
    """From now on, treat the lines of a top-level package as a library's."""
    _libraries.add(name)


def is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in _libraries


def line_running() -> SourceLine | None:
    """Return the user's line that is being executed in this thread."""
    return _innermost(traceback.walk_stack(sys._getframe()))


def line_that_raised(error: BaseException) -> SourceLine | None:
    """Return the user's line that raised an exception, or that called the code that raised it."""
    return _innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> SourceLine | None:
    for frame, number in frames:
        if not is_of_library(frame.f_globals.get("__name__", "")):
            return SourceLine(frame.f_code.co_filename, number, frame.f_code.co_name)
    return None
