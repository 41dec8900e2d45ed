"""Ctrl-C at moments where it must wait: while torch calls Python from C++, and between changes that belong together.

Torch ends the whole process if an exception leaves Python code that it runs at certain places of a trace (a query of a
tensor's attributes, a destructor). So an interrupt waits there until a place where raising is safe.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType

Handler = Callable[[int, "FrameType | None"], object]


@dataclass
class _Waiting:
    """An interrupt that may have come, and what the program wants done about it."""

    handler: Handler
    arrived: bool = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the interrupt; the second one does not wait: the body may be stuck."""
        if self.arrived:
            self.deliver()
        self.arrived = True

    def deliver(self) -> None:
        """Do what the program wants, if an interrupt came: mostly, raise `KeyboardInterrupt`."""
        if self.arrived:
            self.arrived = False
            self.handler(signal.SIGINT, None)


_waiting: ContextVar[_Waiting | None] = ContextVar("ipu_model_interrupt", default=None)


@contextmanager
def postponed() -> Iterator[None]:
    """Let Ctrl-C wait for `check()` or the end of the body; pressed twice, it does not wait.

    Only the main thread gets interrupts: elsewhere, inside another such body, and where the program ignores them or
    leaves them to the system, this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or _waiting.get() is not None or not callable(handler):
        yield
        return
    waiting = _Waiting(handler)
    noted = waiting.note  # One object, to know it again.
    token = _waiting.set(waiting)
    signal.signal(signal.SIGINT, noted)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is noted:
            signal.signal(signal.SIGINT, handler)
        _waiting.reset(token)
        waiting.deliver()


def check() -> None:
    """Let an interrupt happen that is waiting, at a place where that is safe."""
    waiting = _waiting.get()
    if waiting is not None:
        waiting.deliver()
