"""PopTorch's tracing channels, for programs that use them.

Trace points of the original reach Graphcore's tracing library only where that is installed and switched on.
There is no such library here, so everything in this module does nothing, exactly like the original without
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Channel:
    """A named tracing channel; all its methods are no-ops."""

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def tracepoint(self, label: str) -> Iterator[None]:
        """Return a context manager around the traced part; does nothing."""
        yield

    def instrument(self, obj: T, *method_names: str) -> T:
        """Return `obj` unchanged."""
        return obj
