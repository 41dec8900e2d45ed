"""Compile hooks: functions of the program that run before and after every trace of any model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.hooks import RemovableHandle

_before: OrderedDict[int, Callable[[], Any]] = OrderedDict()
_after: OrderedDict[int, Callable[[], Any]] = OrderedDict()


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` right before forward is traced, for every model; return a handle with `remove()`.

    Raises:
        RuntimeError: not callable.
    """
    return _registerHook(_before, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` when a trace has ended, also after a failed one; return a handle with `remove()`.

    Raises:
        RuntimeError: not callable.
    """
    return _registerHook(_after, hook)


def run_before() -> None:
    """Call the pre-compile hooks."""
    for hook in list(_before.values()):
        hook()


@contextmanager
def around_trace() -> Iterator[None]:
    """Call the post-compile hooks when the body ends, even if it raises."""
    try:
        yield
    finally:
        for hook in list(_after.values()):
            hook()


def _registerHook(hooks: OrderedDict[int, Callable[[], Any]], new_hook: Callable[[], Any]) -> RemovableHandle:
    if not callable(new_hook):
        raise RuntimeError(f"A compile hook must be callable, got {type(new_hook)}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = new_hook
    return handle
