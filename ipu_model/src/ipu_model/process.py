"""What a process shares: interrupts, which torch's queries in a trace must not see, locks, garbage, names."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import FrameType
from typing import Any

_deliver: ContextVar[Callable[[], None] | None] = ContextVar("ipu_model_interrupt", default=None)


@contextmanager
def interrupt_postponed() -> Iterator[None]:
    """Let Ctrl-C, where the main thread handles it, wait for `deliver_interrupt()` or the end; twice, not."""
    handler = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or _deliver.get() is not None or not callable(handler):
        yield
        return
    arrived = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if arrived:  # The second one does not wait: the body may be stuck.
            deliver()
        arrived = True

    def deliver() -> None:
        """Do what the program wants, if an interrupt came: mostly, raise `KeyboardInterrupt`."""
        nonlocal arrived
        if arrived:
            arrived = False
            handler(signal.SIGINT, None)

    token = _deliver.set(deliver)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)
        _deliver.reset(token)
        deliver()


def deliver_interrupt() -> None:
    deliver = _deliver.get()
    if deliver is not None:
        deliver()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector: it would look through a growing graph many times and find no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ForkSafeLock:
    """A reentrant lock, used as `with it.lock:`, that is free in a fork, where the holding thread does not exist."""

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = threading.RLock()
        _fork_safe_locks.add(self)


_fork_safe_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _free_in_copy() -> None:
    """Make locks new ones unless the thread that forked, the only one in the copy, holds them."""
    for fork_safe in list(_fork_safe_locks):
        # As `threading.Condition` asks: there is no public way.
        if not fork_safe.lock._is_owned():  # type: ignore[attr-defined]  # typeshed leaves it out
            fork_safe.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_copy)


def installed_instead(name: str, file: str) -> bool:
    """Load the package `name` in place of the module in `file` that stands in for it, if it is installed.

    In the same folder Python prefers the package by itself; this finds it in a later one.
    """
    here = Path(file).resolve().parent
    other = PathFinder.find_spec(name, [entry for entry in sys.path if Path(entry).resolve() != here])
    # A module may be another copy of the stand-in; a plain folder of that name has no file of its own.
    is_package = other is not None and other.submodule_search_locations is not None and other.origin is not None
    if other is None or other.loader is None or not is_package:
        return False
    sys.modules[name] = module_from_spec(other)
    other.loader.exec_module(sys.modules[name])
    return True
