"""Facts of a graph or step that are found once: neither changes, and many programs share one."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import Any, TypeVar

from ipu_model.graph import Graph
from ipu_model.step import Step

T = TypeVar("T")


class _Remembered(dict[object, Any]):
    """Kept by the owner itself: such facts refer to it, and elsewhere would keep it alive for ever."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Remembered, ()  # A copy, or what is read from a file, finds its own.


def remembered_of(owner: Graph | Step) -> MutableMapping[object, Any]:
    """Return what is remembered of a graph or a step, as long as it lives."""
    known: _Remembered = vars(owner).setdefault("_remembered", _Remembered())
    return known


def per_graph(find: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Return a function that calls `find` once for each graph and remembers what it said as long as the graph lives.

    What is returned is shared: callers leave it as it is.
    """

    @wraps(find)
    def remembered(graph: Graph) -> T:
        known = remembered_of(graph)
        if find not in known:
            known[find] = find(graph)
        found: T = known[find]
        return found

    return remembered
