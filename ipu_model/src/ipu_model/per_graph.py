"""Facts of a captured graph that are found once: graphs do not change, and many programs share one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ipu_model.graph import Graph

T = TypeVar("T")


def per_graph(find: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Return a function that calls `find` once for each graph and remembers what it said as long as the graph lives.

    What is returned is shared: callers leave it as it is.
    """
    known: weakref.WeakKeyDictionary[Graph, T] = weakref.WeakKeyDictionary()

    @wraps(find)
    def remembered(graph: Graph) -> T:
        if graph not in known:
            known[graph] = find(graph)
        return known[graph]

    return remembered
