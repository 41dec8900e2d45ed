"""Reads and writes files whole: a reader never sees half a file, and errors are one clear line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ipu_model.errors import Error

# Profiles of the largest models have some ten million.
_MOST_CHARACTERS = 1 << 29


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise Error(f"{what}: {problem.strerror or problem}.") from problem


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, as `write_bytes`; line ends stay as they are."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one go: under another name in the same folder first, then renamed."""
    temporary = _beside(path)
    with refused(f"{path} cannot be written"):
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def check_writable(path: Path) -> None:
    """Refuse a path that `write_text` could not write, without writing it."""
    if path.is_dir():
        raise Error(f"{path} is a folder: name a file in it, such as {path / 'page.html'}.")
    if not path.parent.is_dir():
        raise Error(f"{path} cannot be written: there is no folder {path.parent}. Make it, or name another.")
    temporary = _beside(path)
    with refused(f"{path} cannot be written"):
        temporary.touch()
        temporary.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def read_text(path: Path) -> str:
    """Return the contents of a UTF-8 text file that is no larger than any profile."""
    try:
        with refused(f"{path} cannot be read"), path.open(encoding="utf-8", newline=None) as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError as problem:
        raise Error(f"{path} is not a text file in UTF-8.") from problem
    if len(text) > _MOST_CHARACTERS:
        raise Error(f"{path} is too large: a profile has at most {_MOST_CHARACTERS} characters.")
    return text
