"""Which nodes of a graph share storage, and which variables and constants a replay changes in place."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

Node = torch.fx.Node

# Their schemas do not declare that training mode updates the running statistics (arguments 3 and 4).
_BATCH_NORMS = frozenset({torch.ops.aten.native_batch_norm.default})
_STATISTICS = (3, 4)


def storage_roots(graph: torch.fx.Graph) -> dict[Node, Node]:
    """Map every node to the node that made the storage its result lives in (itself if fresh)."""
    roots: dict[Node, Node] = {}
    for node in graph.nodes:
        source = aliased_argument(node)
        roots[node] = roots[source] if source is not None else node
    return roots


def aliased_argument(node: Node) -> Node | None:
    """Return the argument that the result of `node` is a view of (or is), if there is one."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        parent = node.args[0]
        assert isinstance(parent, Node)
        return aliased_argument(parent)
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns or schema.returns[0].alias_info is None:
        return None
    wanted = schema.returns[0].alias_info.before_set
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == wanted:
            value = _argument(node, position, argument.name)
            if isinstance(value, Node):
                return value
    return None


def is_view(node: Node) -> bool:
    """Whether `node` only reinterprets storage: nothing is computed and nothing is written."""
    return aliased_argument(node) is not None and not written_arguments(node)


def written_arguments(node: Node) -> list[Node]:
    """Return the arguments whose storage `node` changes."""
    if node.op != "call_function":
        return []
    if node.target in _BATCH_NORMS:
        training = _argument(node, 5, "training")
        written = [_argument(node, p, "") for p in _STATISTICS] if training else []
        return [value for value in written if isinstance(value, Node)]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    found: list[Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = _argument(node, position, argument.name)
            found.extend(v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, Node))
    return found


def written_roots(graph: torch.fx.Graph, *, statistics: bool = True) -> set[Node]:
    """Return the storage roots that some node of `graph` writes to after they were made.

    Without `statistics`, the running statistics that batch normalisation keeps are left out.
    """
    roots = storage_roots(graph)
    writers = [node for node in graph.nodes if statistics or node.target not in _BATCH_NORMS]
    return {roots[argument] for node in writers for argument in written_arguments(node)}


def _argument(node: Node, position: int, name: str) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name)
