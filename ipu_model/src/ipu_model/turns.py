"""Locks of which a forked copy of the program gets free ones: the thread that holds one does not exist there."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any


class Turn:
    """A lock that a thread can take several times: `with turn.lock: ...`."""

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = threading.RLock()
        _turns.add(self)

    def free_in_copy(self) -> None:
        """Make the lock a new one unless the thread that forked, the only one in the copy, holds it."""
        # As `threading.Condition` asks: there is no public way.
        if not self.lock._is_owned():  # type: ignore[attr-defined]  # typeshed leaves it out
            self.lock = threading.RLock()


_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


def _free_in_copy() -> None:
    for turn in list(_turns):
        turn.free_in_copy()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_copy)
