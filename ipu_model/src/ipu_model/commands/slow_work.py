"""Say on a terminal what takes so long, so that nobody wonders whether a command still runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds without a word that need no explanation."""
_BETWEEN = 1.0


@contextmanager
def said_if_slow(doing: str, *, patience: float = PATIENCE) -> Iterator[None]:
    """Show what is being done, and for how many seconds, if it takes longer than `patience` seconds.

    The line is on the error output if that is a terminal, and goes away when the work has ended.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(doing, ended, patience), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(doing: str, ended: threading.Event, patience: float) -> None:
    began, width = time.monotonic(), 0
    wait = patience
    while not ended.wait(wait):
        line = f"{doing}: {time.monotonic() - began:.0f} s"
        width = max(width, len(line))
        print(f"\r{line.ljust(width)}", end="", file=sys.stderr, flush=True)
        wait = _BETWEEN
    if width:
        print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)
