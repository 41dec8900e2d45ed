"""A lock between processes, with a time limit."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

PAUSE_SECONDS = 0.01


@contextmanager
def locked(path: Path, limit_seconds: float) -> Iterator[None]:
    """Hold the lock file ``path``; raises ``TimeoutError`` when others hold it for ``limit_seconds``.

    The system frees the lock when its process ends, however it ends, so none is ever left behind. The file itself
    stays: removing it would let two processes lock two files of one name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + limit_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is locked")
            time.sleep(PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)  # which frees the lock


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # Some network file systems have no locks. The file is still replaced whole: at worst, of two notes made
            # at the same moment one is lost.
            return True
        return True
