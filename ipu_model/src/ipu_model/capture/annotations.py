"""What a front end reads and changes of a captured graph beside its step: marks of transfers, prints, more results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ipu_model.capture.aliases import storage_roots, written_roots
from ipu_model.capture.graph import Graph, Output, Printed
from ipu_model.step import Phase


def marks_of(graph: Graph, key: str) -> list[object]:
    """Return the values of one hint, in the order of the inputs and ops that have it."""
    return [node.meta["hints"][key] for node in graph.ops.nodes if key in node.meta.get("hints", {})]


def title_prints(graph: Graph, title_of: Callable[[str, bool], str]) -> None:
    """Give the prints of a graph that have no title one: `title_of(tensor, is_gradient)` of what is printed."""
    nodes = {node.name: node for node in graph.ops.nodes}
    for node in nodes.values():
        printed = node.meta.get("hints", {}).get("printed")
        if not isinstance(printed, Printed) or printed.title:
            continue
        of = node if printed.gradient_of is None else nodes.get(printed.gradient_of, node)
        title = title_of(of.all_input_nodes[0].name, of is not node)
        node.meta["hints"] = {**node.meta["hints"], "printed": replace(printed, title=title)}


def with_results(graph: Graph, wanted: Sequence[str]) -> Graph:
    """Return the graph with the tensors of these names as anchored outputs after those of forward.

    They have the values that they are given when they are computed, whatever is written over them later.
    """
    ops = torch.fx.Graph()
    results: Any = ops.graph_copy(graph.ops, {})
    by_name = {node.name: node for node in ops.nodes}
    returned, gradients = results
    written, roots = written_roots(ops), storage_roots(ops)
    kept = [_kept(ops, by_name[name], overwritten=roots[by_name[name]] in written) for name in wanted]
    ops.output(((*returned, *kept), tuple(gradients)))
    ops.lint()
    anchored = tuple(Output(node.name, node.meta["spec"], anchored=True) for node in kept)
    return replace(graph, ops=ops, outputs=(*graph.outputs, *anchored))


def _kept(ops: torch.fx.Graph, node: torch.fx.Node, *, overwritten: bool) -> torch.fx.Node:
    """Return a node with the value that `node` has when it is computed: a copy if something changes it later."""
    if not overwritten:
        return node
    first = next(each for each in ops.nodes if each.op == "call_function")
    with ops.inserting_after(node) if node.op == "call_function" else ops.inserting_before(first):
        copy = ops.call_function(torch.ops.aten.clone.default, (node,))
    # A variable or input has no place of its own: its copy goes with the first op.
    place_of = node if node.op == "call_function" else first
    copy.meta = {"phase": Phase.FORWARD, "placement": place_of.meta["placement"], "scope": place_of.meta["scope"]}
    copy.meta |= {key: value for key, value in node.meta.items() if key != "hints"}
    copy.meta["hints"] = {"nop": True, "anchored": True}
    return copy
