"""Costs of a graph, remembered: many programs that differ in their options only share one graph."""

from __future__ import annotations

import weakref

from ipu_model.graph import Graph
from ipu_model.lower import CostSettings, Lowered, lower

_KEPT_PER_GRAPH = 8
_remembered: weakref.WeakKeyDictionary[Graph, list[tuple[CostSettings, Lowered]]] = weakref.WeakKeyDictionary()


def lowered(graph: Graph, settings: CostSettings) -> Lowered:
    """Return `lower(graph, settings)`, at once if it was asked for lately.

    Raises:
        Error: a hint that no device can follow.
    """
    known = _remembered.setdefault(graph, [])
    for kept, found in known:
        if kept == settings:
            return found
    found = lower(graph, settings)
    known.append((settings, found))
    del known[:-_KEPT_PER_GRAPH]
    return found
