"""Files are written whole or not at all, and read only where they have an end."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

AnyPath = Union[str, "os.PathLike[str]"]


@contextmanager
def _naming(path: AnyPath) -> Iterator[None]:
    """Let errors name the file that was asked for, and not one beside it, or none."""
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno or errno.EIO, problem.strerror or str(problem), os.fspath(path)) from problem
    except ValueError as problem:  # a null byte
        raise OSError(errno.EINVAL, str(problem), os.fspath(path)) from problem


def write_whole(path: AnyPath, content: str | bytes, mode: int | None = None) -> None:
    """Write a file as a whole or not at all. Raises ``OSError``, which names it, with an older file left as it was.

    Without ``mode`` the permissions are those of the older file, else the usual ones. Links stay, and what is no file,
    such as ``/dev/stdout``, is only written to.
    """
    data = content.encode() if isinstance(content, str) else content
    with _naming(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        beside = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")
        try:
            with open(beside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(beside, mode)
            elif target.exists():
                shutil.copymode(target, beside)
            os.replace(beside, target)
        except BaseException:
            if os.path.lexists(beside):
                os.unlink(beside)
            raise


def read_whole(path: AnyPath, most_bytes: int) -> bytes:
    """Return what is in a regular file of at most so many bytes. Raises ``OSError``, which names it."""
    at_once = getattr(os, "O_NONBLOCK", 0)  # without waiting for somebody who writes to a pipe
    with _naming(path), open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file")
        data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"It is too large: at most {most_bytes} bytes can be read")
        return data
