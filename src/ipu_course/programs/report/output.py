"""Files that the commands write: they replace an older one of their own, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from ipu_course.errors import CourseError
from ipu_course.whole_files import write_whole

LONGEST_START = 2000


def write_output(path: Path, text: str, what: str, option: str, is_own: Callable[[str], bool]) -> None:
    """Write ``text``, whole or not at all, unless another file than one of our own is in the way.

    ``what`` names the kind of file, ``option`` the one that chooses another; ``is_own`` looks at the start of a file.
    Raises ``CourseError`` when the file is not ours or cannot be written.
    """
    try:
        start = ""
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                start = file.read(LONGEST_START)
        if path.exists() and not is_own(start):
            raise CourseError(f"{path} exists already and is not a {what} of this course; choose another with {option}")
        write_whole(path, text)
    except OSError as problem:
        raise CourseError(
            f"{path} cannot be written ({problem.strerror}); choose another file with {option}"
        ) from problem
