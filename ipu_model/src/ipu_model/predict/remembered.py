"""A cache of results for each step, which programs that differ only in their options share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ipu_model.predict.program import Program
from ipu_model.step import Step

Subject = TypeVar("Subject", bound=Step | Program)
Key = ParamSpec("Key")
Value = TypeVar("Value")
_KEPT_PER_STEP = 8
_all: list[WeakKeyDictionary[Step, Any]] = []


def forget_everything() -> None:
    """Clear all caches, after a change of the model itself, which no key covers."""
    for known in _all:
        known.clear()


def remembered(find: Callable[Concatenate[Subject, Key], Value]) -> Callable[Concatenate[Subject, Key], Value]:
    """Cache the last few results of `find` for each living step; a program's choices and other arguments are the key.

    Neither results nor keys may refer to the step. If two threads compute the same value at once, each gets its own.
    """
    known: WeakKeyDictionary[Step, tuple[tuple[object, Value], ...]] = WeakKeyDictionary()
    _all.append(known)

    @wraps(find)
    def recall(subject: Subject, /, *args: Key.args, **kwargs: Key.kwargs) -> Value:
        step, choices = (subject.step, subject.choices) if isinstance(subject, Program) else (subject, ())
        key = (*choices, *args, kwargs)
        for other, value in known.get(step, ()):
            if other == key:
                return value
        value = find(subject, *args, **kwargs)
        known[step] = (*known.get(step, ())[1 - _KEPT_PER_STEP :], (key, value))
        return value

    return recall
