"""Remembers what was found for a step: many programs that differ in their options only share one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ipu_model.step import Step

Key = ParamSpec("Key")
Value = TypeVar("Value")
_KEPT_PER_STEP = 8


class Recent(Generic[Value]):
    """The last few values of each step, as long as the step lives."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Step, tuple[tuple[object, Value], ...]] = WeakKeyDictionary()

    def get(self, step: Step, key: object, find: Callable[[], Value]) -> Value:
        """Return the value of `key`, found now if it is not remembered; threads may find one value twice.

        The key must hold everything else that the value depends on. It need not be hashable, but neither it nor the
        value may refer to the step, which would live for ever then. Values are shared: leave them as they are.
        """
        known = self._known.get(step, ())
        for other, value in known:
            if other == key:
                return value
        found = find()
        self._known[step] = (*known[1 - _KEPT_PER_STEP :], (key, found))
        return found


def remembered(find: Callable[Concatenate[Step, Key], Value]) -> Callable[Concatenate[Step, Key], Value]:
    """Return a function that calls `find` for what it does not remember; its other arguments are the key."""
    recent: Recent[Value] = Recent()

    @wraps(find)
    def found_lately(step: Step, /, *args: Key.args, **kwargs: Key.kwargs) -> Value:
        return recent.get(step, (*args, kwargs), lambda: find(step, *args, **kwargs))

    return found_lately
