"""Reads and writes files whole: nobody ever finds half a file, devices and endless files are no danger."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ipu_model.errors import Error


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise Error(f"{what}: {problem.strerror or problem}.") from problem


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors name the file that the program named, and not one beside it, or none."""
    try:
        yield
    except OSError as problem:
        if problem.filename == os.fspath(path):
            raise
        raise OSError(problem.errno or errno.EIO, problem.strerror or str(problem), os.fspath(path)) from problem
    except ValueError as problem:  # a null byte
        raise OSError(errno.EINVAL, str(problem), os.fspath(path)) from problem


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` so that a file has either all of it or what was there before; `OSError`, with the file's name.

    It is written under another name in the same folder first, then renamed. Links stay, and so do an older file's
    permissions. What is no file, such as `/dev/stdout`, is only written to.
    """
    with _naming(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        beside = _beside(target)
        try:
            with open(beside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, beside)
            os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with `write_whole`; line ends stay as they are. Raises `Error`."""
    with refused(f"{path} cannot be written"):
        write_whole(path, text.encode("utf-8", errors="backslashreplace"))


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


@contextlib.contextmanager
def regular_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading; `OSError`: it is a folder, a pipe or a device, whose end may never come."""
    at_once = getattr(os, "O_NONBLOCK", 0)  # without waiting for somebody who writes to a pipe
    with _naming(path), open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file")
        yield file


def read_whole(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return what is in a regular file that has at most so many bytes; `OSError`, with the file's name."""
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
        if max(size, len(data)) > most_bytes:
            raise OSError(errno.EFBIG, f"It is too large: at most {most_bytes} bytes can be read")
        return data
