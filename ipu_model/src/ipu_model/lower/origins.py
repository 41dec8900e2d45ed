"""What can be told about a graph's tensors before costing: weights, constants, hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ipu_model.capture.aliases import is_view, storage_roots, written_arguments
from ipu_model.graph import Graph
from ipu_model.lower.moves import CONSTANTS
from ipu_model.lower.view import Node, aten_name
from ipu_model.step import Phase

_COSTED_HINTS = ("available_memory_proportion", "serialized", "multi_conv")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")


class Origins:
    """Where the tensors of one graph come from.

    `roots` maps nodes to those that made their storage; `weights` are trainable tensors and views and casts
    of them; `constants` are known when compiling, so nothing runs for them; `hints` are those of each op, or
    of the forward op that a backward op belongs to.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = list(graph.ops.nodes)
        self.roots = storage_roots(graph.ops)
        self.weights = _weights(graph, nodes)
        self.constants = _constants(nodes, self.roots)
        self.hints = _hints(nodes, self.roots)


def _weights(graph: Graph, nodes: Iterable[Node]) -> frozenset[Node]:
    trainable = {variable.node for variable in graph.variables if variable.trainable}
    found: set[Node] = set()
    for node in nodes:
        if node.op == "placeholder" and node.name in trainable:
            found.add(node)
        elif node.op == "call_function" and (is_view(node) or aten_name(node) == "_to_copy"):
            source = node.args[0]
            if isinstance(source, Node) and source in found:
                found.add(node)
    return frozenset(found)


def _constants(nodes: Iterable[Node], roots: Mapping[Node, Node]) -> frozenset[Node]:
    """Return the nodes that PopART would fold: they depend on nothing that changes."""
    known: set[Node] = set()
    written: set[Node] = set()
    for node in nodes:
        if node.op == "get_attr":
            known.add(node)
        if node.op != "call_function":
            continue
        inputs = [source for source in node.all_input_nodes if _holds_tensor(source)]
        fixed = all(source in known and roots[source] not in written for source in inputs)
        if aten_name(node) in CONSTANTS or (inputs and fixed and not _is_random(node)):
            known.add(node)
        else:
            written.update(roots[target] for target in written_arguments(node))
    return frozenset(known)


def _holds_tensor(node: Node) -> bool:
    return node.meta.get("spec") is not None


def _is_random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _hints(nodes: Iterable[Node], roots: Mapping[Node, Node]) -> dict[Node, Mapping[str, Any]]:
    """Map ops to what the program said about them; gradients follow their forward op."""
    found: dict[Node, Mapping[str, Any]] = {}
    of_operand: dict[tuple[Node, str], Mapping[str, Any]] = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        own = {key: value for key, value in node.meta.get("hints", {}).items() if key in _COSTED_HINTS}
        name, scope = aten_name(node), node.meta["scope"]
        if own:
            found[node] = own
            operands = [source for source in node.all_input_nodes if source in roots]
            of_operand.update({(roots[source], scope): own for source in operands})
        elif node.meta["phase"] is Phase.BACKWARD and name in (*_PRODUCTS, "convolution_backward", "lstm_backward"):
            inherited = [of_operand.get((roots[source], scope)) for source in node.all_input_nodes]
            hints = next((hint for hint in inherited if hint), None)
            if hints is not None:
                found[node] = hints
    return found
