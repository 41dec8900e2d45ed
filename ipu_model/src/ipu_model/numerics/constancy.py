"""Which outputs of a program are known at compile time: they are returned once, whatever the output mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ipu_model.capture.aliases import storage_roots, written_arguments
from ipu_model.graph import Graph

Node = torch.fx.Node


def constant_outputs(graph: Graph) -> tuple[bool, ...]:
    """Say for each computed output whether it depends on no variable, no input and no random number."""
    roots = storage_roots(graph.ops)
    varying: set[Node] = set()
    for node in graph.ops.nodes:
        if _starts_varying(node) or any(roots[source] in varying for source in node.all_input_nodes):
            varying.add(roots[node])
            varying.update(roots[written] for written in written_arguments(node))
    return tuple(roots[node] not in varying for node in _outputs(graph.ops))


def _starts_varying(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "placeholder" or torch.Tag.nondeterministic_seeded in tags


def _outputs(ops: torch.fx.Graph) -> list[Node]:
    # The output node holds the pair (outputs, gradients), see Graph.
    pair: Any = ops.output_node().args[0]
    return list(pair[0])
