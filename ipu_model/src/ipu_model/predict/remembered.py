"""Remembers what was found for a step: many programs that differ in their options only share one."""

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
    """The last few values of each step, as long as the step lives.

    The key of a value must hold everything else that the value depends on. It need not be hashable, but neither it nor
    the value may refer to the step, which would live for ever then. Values are shared: leave them as they are.
    """

    def __init__(self) -> None:
        _all.append(self)
        self._known: WeakKeyDictionary[Step, tuple[tuple[object, Value], ...]] = WeakKeyDictionary()

    def forget(self) -> None:
        """Forget all values."""
        self._known.clear()

    def get(self, step: Step, key: object) -> Value | None:
        """Return the value of `key`; `None` if it is not among the last few."""
        return next((value for other, value in self._known.get(step, ()) if other == key), None)

    def keep(self, step: Step, key: object, value: Value) -> Value:
        """Remember and return `value`; of two threads that find one value at once, each returns its own."""
        self._known[step] = (*self._known.get(step, ())[1 - _KEPT_PER_STEP :], (key, value))
        return value


def forget_everything() -> None:
    """Forget every value: for changes of the model itself, which no key holds."""
    for recent in _all:
        recent.forget()


def remembered(find: Callable[Concatenate[Step, Key], Value]) -> Callable[Concatenate[Step, Key], Value]:
    """Return a function that calls `find` for what it does not remember; its other arguments are the key."""
    recent: Recent[Value] = Recent()

    @wraps(find)
    def found_lately(step: Step, /, *args: Key.args, **kwargs: Key.kwargs) -> Value:
        key = (*args, kwargs)
        known = recent.get(step, key)
        return recent.keep(step, key, find(step, *args, **kwargs)) if known is None else known

    return found_lately
