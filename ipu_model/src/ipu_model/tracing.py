"""Which trace is under way: what `poptorch`'s annotations talk to while `forward` is being recorded.

Outside a trace there is no active one and annotations are inert, as PopTorch asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipu_model.capture.trace import Trace

_current: ContextVar[Trace | None] = ContextVar("ipu_model_trace", default=None)


def current() -> Trace | None:
    """Return the trace under way in this thread, or `None`."""
    return _current.get()


def is_tracing() -> bool:
    """Return whether a model's `forward` is being recorded for the device."""
    return _current.get() is not None


@contextmanager
def suspended() -> Iterator[None]:
    """Let there be no current trace for the body: what the host computes while a trace is under way."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def active(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the current one for the body; always restored, also after an exception."""
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)
