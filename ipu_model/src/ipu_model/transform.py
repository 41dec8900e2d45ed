"""Graphs derived from a captured one, to ask what a change of the program would do to its cost.

They are for lowering only: their constants keep their element types, so that they cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ipu_model.graph import Graph, TensorSpec
from ipu_model.step import Placement

Node = torch.fx.Node


def in_half_precision(graph: Graph) -> Graph:
    """Return the graph with float16 wherever it has float32: what `model.half()` on float16 inputs gives."""

    def change(meta: dict[str, Any]) -> dict[str, Any]:
        return {**meta, "spec": _halved(meta["spec"])} if "spec" in meta else meta

    return replace(
        graph,
        ops=_with_meta(graph.ops, change),
        variables=tuple(replace(v, spec=_halved(v.spec)) for v in graph.variables),
        inputs=tuple(_halved(spec) for spec in graph.inputs),
    )


def with_byte_inputs(graph: Graph) -> Graph:
    """Return the graph with floating-point inputs sent as bytes; the cast on the device is not added."""
    return replace(graph, inputs=tuple(_as_bytes(spec) for spec in graph.inputs))


def _as_bytes(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype=torch.uint8) if spec.dtype.is_floating_point else spec


def placed(graph: Graph, place_of: Mapping[str, Placement]) -> Graph:
    """Return the graph with the ops of each scope in `place_of` placed there; other ops stay where they are.

    The block entries follow the new places in the order of `place_of`.
    """

    def change(meta: dict[str, Any]) -> dict[str, Any]:
        place = place_of.get(meta.get("scope", "")) if "placement" in meta else None
        return meta if place is None else {**meta, "placement": place}

    entries = tuple(dict.fromkeys(place_of.values()))
    return replace(graph, ops=_with_meta(graph.ops, change), block_entries=entries)


def _with_meta(ops: torch.fx.Graph, change: Callable[[dict[str, Any]], dict[str, Any]]) -> torch.fx.Graph:
    """Return a copy of `ops` with the same node names and changed descriptions."""
    copy = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in ops.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
        copies[node].name = node.name
        copies[node].meta = change(node.meta)
    return copy


def _halved(spec: Any) -> Any:
    if isinstance(spec, tuple):
        return tuple(_halved(each) for each in spec)
    if isinstance(spec, TensorSpec) and spec.dtype is torch.float32:
        return replace(spec, dtype=torch.float16)
    return spec
