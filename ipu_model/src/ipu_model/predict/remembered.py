"""A cache of results for each step: programs that differ only in their options share a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ipu_model.step import Step

Key = ParamSpec("Key")
Value = TypeVar("Value")
_KEPT_PER_STEP = 8
_all: list[Recent[Any]] = []


class Recent(Generic[Value]):
    """The last few values of each living step, shared, by keys with all else they need; none may refer to the step."""

    def __init__(self) -> None:
        _all.append(self)
        self._known: WeakKeyDictionary[Step, tuple[tuple[object, Value], ...]] = WeakKeyDictionary()

    def forget(self) -> None:
        self._known.clear()

    def get(self, step: Step, key: object) -> Value | None:
        return next((value for other, value in self._known.get(step, ()) if other == key), None)

    def keep(self, step: Step, key: object, value: Value) -> Value:
        """Store and return `value`; if two threads compute the same value at once, each gets its own."""
        self._known[step] = (*self._known.get(step, ())[1 - _KEPT_PER_STEP :], (key, value))
        return value


def forget_everything() -> None:
    """Clear all caches, after a change of the model itself, which no key covers."""
    for recent in _all:
        recent.forget()


def remembered(find: Callable[Concatenate[Step, Key], Value]) -> Callable[Concatenate[Step, Key], Value]:
    """Cache the results of `find` for each step; its other arguments are the key."""
    recent: Recent[Value] = Recent()

    @wraps(find)
    def recall(step: Step, /, *args: Key.args, **kwargs: Key.kwargs) -> Value:
        key = (*args, kwargs)
        known = recent.get(step, key)
        return recent.keep(step, key, find(step, *args, **kwargs)) if known is None else known

    return recall
