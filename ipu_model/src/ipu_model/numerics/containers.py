"""Half precision as a graph pass: fp16 values live in fp32 tensors, on the fp16 grid.

Every op computes in fp32 and its result is rounded once,
as the device does with fp16 storage and fp32 arithmetic;
this is many times faster on a CPU than arithmetic on fp16 tensors.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ipu_model.capture.aliases import aliased_argument, is_view, written_arguments
from ipu_model.numerics.exact import CONVERTING, EXACT, READERS_OF_SAVED, SAVED, SELECTING, UNINITIALISED
from ipu_model.numerics.operands import (
    ON_GRID,
    cast_operands,
    dtype_of,
    is_half,
    keep_below_one,
    put_numbers_on_grid,
    refuse_what_has_no_container,
)
from ipu_model.numerics.rounding import round_to_half_

Node = torch.fx.Node
aten = torch.ops.aten

# Up to here a rounding takes longer to make its temporary tensor than to compute.
_SMALL = 1 << 14

# Integer operands of these are values, not indices or masks.
_WITH_VALUES = frozenset({
    aten.cat.default, aten.stack.default, aten.where.self, aten.masked_fill.Tensor, aten.masked_fill_.Tensor,
})  # fmt: skip


def to_containers(graph: torch.fx.Graph) -> None:
    """Rewrite `graph` in place: fp16 becomes fp32, with one rounding after every op that is not exact.

    Raises:
        Error: an op that looks at the bits of fp16 values, or a product of fp16 and fp32 operands.
    """
    roundings = _Roundings(graph)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        refuse_what_has_no_container(node)
        put_numbers_on_grid(node)
        cast_operands(graph, node)
        rounds = _needs_rounding(node)
        node.args, node.kwargs = _widened(node.args), _widened(node.kwargs)
        keep_below_one(node)
        if rounds:
            roundings.insert_after(node, node)
        for argument in written_arguments(node):
            if is_half(argument) and aliased_argument(node) is not argument:
                roundings.insert_after(node, argument)


class _Roundings:
    """Inserts roundings; small results of one shape go through one scratch tensor of the replay."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
        self._scratches: dict[tuple[int, ...], Node] = {}

    def insert_after(self, node: Node, value: Node) -> None:
        """Insert a rounding of `value` right after `node`."""
        spec = value.meta["spec"]
        scratch = [self._scratch(spec.shape)] if spec.elements <= _SMALL else []
        with self._graph.inserting_after(node):
            rounding = self._graph.call_function(round_to_half_, (value, *scratch))
        rounding.meta = {k: v for k, v in node.meta.items() if k != "hints"}
        rounding.meta["spec"] = spec

    def _scratch(self, shape: tuple[int, ...]) -> Node:
        if shape not in self._scratches:
            with self._graph.inserting_before(self._first):
                made = self._graph.call_function(torch.empty, (list(shape),), {"dtype": torch.float16})
            self._scratches[shape] = made
        return self._scratches[shape]


def _widened(arguments: Any) -> Any:
    """Replace every dtype argument float16 by float32."""
    return torch.fx.node.map_aggregate(arguments, lambda a: torch.float32 if a is torch.float16 else a)


def _needs_rounding(node: Node) -> bool:
    if not is_half(node) or is_view(node):
        return False
    if node.target is operator.getitem:
        return not _is_saved(node) and not _is_exact(_parent(node))
    return not _is_exact(node)


def _is_exact(node: Node) -> bool:
    """Whether the result of `node` is on the grid without rounding."""
    if node.target in UNINITIALISED:
        return True
    if node.target in CONVERTING:
        # `copy_(target, source)`, but `_to_copy(source)`.
        source = node.args[0] if node.target is aten._to_copy.default else node.args[1]
        return dtype_of(source) in ON_GRID
    if node.target not in EXACT and node.target not in SELECTING:
        return False
    operands = [dtype for dtype in map(dtype_of, node.all_input_nodes) if dtype is not None]
    values = [dtype for dtype in operands if dtype.is_floating_point or node.target in _WITH_VALUES]
    return ON_GRID.issuperset(values)


def _parent(node: Node) -> Node:
    parent = node.args[0]
    assert isinstance(parent, Node)
    return parent


def _is_saved(node: Node) -> bool:
    """Whether `node` is a result that forward keeps for its own backward op, and for nothing else."""
    return node.args[1] in SAVED.get(_parent(node).target, ()) and all(u.target in READERS_OF_SAVED for u in node.users)
