"""The progress file on disk: read, changed under a lock, replaced whole."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator

from filelock import FileLock, Timeout

from ipu_course.progress.file_format import DamagedFile, from_text, to_text
from ipu_course.progress.record import Progress

LOCK_SECONDS = 2.0
"""How long a note waits for other kernels: a lesson must not stand still for its records."""

POLL_SECONDS = 0.01

Change = Callable[[Progress], Progress]


def load(path: Path) -> Progress:
    """The progress in ``path``, empty when there is no such file.

    Raises ``OSError``, ``DamagedFile`` or ``NewerFile``.
    """
    if not _is_there(path):
        return Progress()
    content = path.read_bytes()
    try:
        return from_text(content.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise DamagedFile(str(problem)) from problem


def update(path: Path, change: Change, wait_seconds: float = LOCK_SECONDS) -> None:
    """Apply ``change`` to the progress in ``path``; raises ``OSError`` or ``NewerFile`` with the file left as it was.

    A damaged file is first moved aside, to ``progress.damaged-1.json`` and so on.
    """
    _is_there(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, wait_seconds):
        try:
            known = load(path)
        except DamagedFile:
            move_aside(path, "damaged")
            known = Progress()
        changed = change(known)
        if changed != known:
            _replace(path, to_text(changed))


def reset(path: Path) -> Path | None:
    """Move the progress file aside as a backup and give the backup's path; ``None`` when there was none."""
    if not _is_there(path):
        return None
    with locked(path):
        return move_aside(path, "backup")


@contextmanager
def locked(path: Path, wait_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock file beside ``path``; raises ``TimeoutError`` when others hold it for ``wait_seconds``.

    The system frees the lock when its process ends, however it ends, so none is ever left behind.
    """
    lock = FileLock(str(path.with_name(f"{path.name}.lock")), timeout=wait_seconds)
    try:
        lock.acquire(poll_interval=POLL_SECONDS)
    except Timeout:
        raise
    except (NotImplementedError, OSError):
        # Some network file systems have no locks. The file is still replaced whole: at worst, of two notes made
        # at the same moment one is lost.
        pass
    try:
        yield
    finally:
        lock.release()


def move_aside(path: Path, why: str) -> Path:
    """Rename ``path`` to the first free ``NAME.WHY-NUMBER.SUFFIX`` beside it; the caller holds the lock."""
    number = 1
    while True:
        target = path.with_name(f"{path.stem}.{why}-{number}{path.suffix}")
        if not os.path.lexists(target):
            os.replace(path, target)
            return target
        number += 1


def _is_there(path: Path) -> bool:
    # Whoever sends the record to /dev/null wants none, and would lose more than a file were it replaced.
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path.exists()


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
