"""The tensors that take memory on the device: which node made each, and how it lies on tiles."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cached_property
from typing import TypeAlias

import torch.fx

from ipu_model.capture.aliases import storage_roots, written_arguments
from ipu_model.capture.describe import CONSTANTS, dtype_of, op_kind
from ipu_model.cost.device import Element
from ipu_model.graph import Graph, TensorSpec
from ipu_model.lower import Lowered, OpCost
from ipu_model.memory.spread import NOTHING, Room, Spread
from ipu_model.step import Phase

Node: TypeAlias = torch.fx.Node

# Second results that the device does not make: the gradient of a maximum compares inputs and outputs again.
_POOLS = ("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d")

# A dropout's mask is drawn again from the same seed in the backward pass (PopART's DropoutGradOp).
_DRAWN_AGAIN = ("bernoulli", "native_dropout")


class Storages:
    """The tensors of one graph, each known by the node that made its storage.

    `root` maps nodes to those tensors; `parts` lists what each op costs, in the order in which it runs.
    """

    def __init__(self, graph: Graph, lowered: Lowered, room: Room) -> None:
        self.graph, self.room = graph, room
        self.nodes: tuple[Node, ...] = tuple(graph.ops.nodes)
        self.by_name = {node.name: node for node in self.nodes}
        self._layouts = lowered.layouts
        self.parts: dict[str, list[OpCost]] = {}
        for op in lowered.ops:
            self.parts.setdefault(op.node, []).append(op)
        self._spreads: dict[Node, Spread] = {}
        self._roots = self._device_roots()

    def root(self, node: Node) -> Node:
        """Return the node that made the storage of `node`."""
        return self._roots[node]

    def _device_roots(self) -> dict[Node, Node]:
        roots = storage_roots(self.graph.ops)
        stand_in: dict[Node, Node] = {}
        for node in self.nodes:
            if roots[node] is node:
                stand_in[node] = self._stand_in(node, roots, stand_in)
        return {node: stand_in[root] for node, root in roots.items()}

    def _stand_in(self, node: Node, roots: dict[Node, Node], known: dict[Node, Node]) -> Node:
        """Return the tensor that the device has in place of what `node` makes: mostly itself."""
        op = maker_of(node)
        if op.op != "call_function":
            return node
        if node is not op and node.args[1] == 1 and op_kind(op) in _POOLS and _only_for_backward(node):
            return next((user for user in op.users if user.args[1] == 0), node)
        operands = [source for source in op.all_input_nodes if _has_tensor(source)]
        if op.name not in self.parts and operands and not _is_constant_op(op):
            return known[roots[operands[0]]]  # nothing runs: the same tensor under another name or type
        return node

    @cached_property
    def constants(self) -> frozenset[Node]:
        """The tensors that are known when compiling."""
        made = {node for node in self.nodes if node.op == "get_attr" or _is_constant_op(node)}
        if not made:
            return frozenset()
        written = {self.root(source) for node in self.nodes for source in written_arguments(node)}
        return frozenset(n for n in made - written if self.root(n) is n and n.name not in self.parts)

    @cached_property
    def drawn_again(self) -> frozenset[Node]:
        """The tensors that are not kept for the backward pass because they can be drawn again."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.op == "call_function" and op_kind(node) in _DRAWN_AGAIN:
                items = [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]
                found.update(items if op_kind(node) == "native_dropout" else [self.root(node)])
        return frozenset(found)

    def spread(self, root: Node) -> Spread:
        """Return how a tensor lies on tiles; what is no tensor takes nothing."""
        if root not in self._spreads:
            self._spreads[root] = self._placed(root)
        return self._spreads[root]

    def _placed(self, root: Node) -> Spread:
        spec, layout = root.meta.get("spec"), self._layouts.get(root.name)
        if not isinstance(spec, TensorSpec):
            return NOTHING
        element = Element.of(dtype_of(spec.dtype))
        on_tile = layout.on_tile if layout is not None else self.room.device.spread(spec.elements, element)
        return self.room.place(spec.elements, on_tile, element.bytes)

    def made_by(self, node: Node) -> list[Node]:
        """Return the tensors that an op makes anew: itself, or those of its results that are looked at."""
        if isinstance(node.meta.get("spec"), TensorSpec):
            return [node] if self.root(node) is node else []
        items = [user for user in node.users if user.target is operator.getitem]
        return [item for item in items if self.root(item) is item]

    def read_by(self, node: Node) -> list[Node]:
        """Return the tensors that an op reads or changes, each once."""
        return list(dict.fromkeys(self.root(source) for source in node.all_input_nodes if _has_tensor(source)))

    def widest(self, roots: Iterable[Node]) -> int:
        """Return over how many tiles the widest of some tensors is spread."""
        return max((self.spread(root).tiles for root in roots), default=1)


def maker_of(root: Node) -> Node:
    """Return the op that made a tensor: for one of several results, the op with all of them."""
    if root.op == "call_function" and root.target is operator.getitem:
        parent = root.args[0]
        assert isinstance(parent, Node)
        return parent
    return root


def _is_constant_op(node: Node) -> bool:
    return node.op == "call_function" and op_kind(node) in CONSTANTS


def _only_for_backward(node: Node) -> bool:
    return all(user.meta.get("phase") is Phase.BACKWARD for user in node.users)


def _has_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("spec"), TensorSpec)
