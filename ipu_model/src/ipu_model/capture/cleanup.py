"""Remove what tracing leaves behind and replay does not need: detach, alias, dead ops, dead counters."""

from __future__ import annotations

import torch
import torch.fx

from ipu_model.capture.aliases import storage_roots, written_arguments

Node = torch.fx.Node

_IDENTITIES = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
)

# Ops with effects outside their results register themselves here (printing a tensor, for instance).
SIDE_EFFECTS: set[object] = set()


def clean(graph: torch.fx.Graph) -> dict[Node, Node]:
    """Simplify `graph` in place without changing what a replay returns or leaves in variables.

    Returns the node that stands in for each one that was erased because it only repeated another.
    """
    stand_ins = _skip_identities(graph)
    _drop_dead(graph)
    _drop_dead_counters(graph)
    _drop_dead(graph)
    graph.lint()
    return stand_ins


def _skip_identities(graph: torch.fx.Graph) -> dict[Node, Node]:
    stand_ins: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _IDENTITIES:
            source = node.args[0]
            assert isinstance(source, Node)
            _keep_hints(node, source)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            stand_ins[node] = source
    return stand_ins


def _keep_hints(node: Node, source: Node) -> None:
    if "hints" in node.meta:
        source.meta.setdefault("hints", {}).update(node.meta["hints"])


def _drop_dead(graph: torch.fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        removable = node.op in ("call_function", "get_attr") and not node.users
        if removable and not written_arguments(node) and node.target not in SIDE_EFFECTS:
            graph.erase_node(node)


def _drop_dead_counters(graph: torch.fx.Graph) -> None:
    """Erase in-place updates of constants that nothing reads, such as BatchNorm's `num_batches_tracked`."""
    roots = storage_roots(graph)
    members: dict[Node, list[Node]] = {}
    for node, root in roots.items():
        members.setdefault(root, []).append(node)
    for root, nodes in members.items():
        if root.op == "get_attr" and _only_updates_itself(root, nodes):
            for node in reversed(nodes):
                graph.erase_node(node)


def _only_updates_itself(root: Node, nodes: list[Node]) -> bool:
    inside = set(nodes)
    return all(user in inside for node in nodes for user in node.users)
