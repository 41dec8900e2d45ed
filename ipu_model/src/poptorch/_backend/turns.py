"""Threads that use one executor take turns: a call sees all of another thread's call, or nothing of it.

A thread may hold an executor's turn while it waits for its turn to trace only as long as that executor is not attached,
and reading weights asks for a turn only of executors that are: so no two threads can wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from ipu_model.turns import Turn


class TakesTurns(Protocol):
    """An executor with its lock, which one thread can take several times."""

    _turn: Turn


Executor = TypeVar("Executor", bound=TakesTurns)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_turn(
    method: Callable[Concatenate[Executor, Arguments], Result],
) -> Callable[Concatenate[Executor, Arguments], Result]:
    """Let a method wait until no other thread is in a method of the same executor."""

    @wraps(method)
    def waiting(self: Executor, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._turn.lock:
            return method(self, *args, **kwargs)

    return cast("Callable[Concatenate[Executor, Arguments], Result]", waiting)
