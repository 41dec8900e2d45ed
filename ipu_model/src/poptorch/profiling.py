"""PopTorch's tracing channels, for programs that use them.

Trace points of the original reach Graphcore's tracing library only where that is installed and switched on. There is no
such library here, so everything in this module does nothing, exactly like the original without it.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

T = TypeVar("T")


class _DummyTracepoint:
    def __enter__(self) -> None:
        pass

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        pass


class _Channels:
    _by_name: ClassVar[dict[str, Channel]] = {}

    @staticmethod
    def getOrCreate(name: str) -> Channel:
        return _Channels._by_name.setdefault(name, Channel(name))


class Channel:
    """A named tracing channel; all its methods are no-ops."""

    def __init__(self, name: str) -> None:
        self._name = name

    def instrument(self, obj: T, *methods: str) -> T:
        return obj

    def tracepoint(self, name: str) -> _DummyTracepoint:
        return _DummyTracepoint()
