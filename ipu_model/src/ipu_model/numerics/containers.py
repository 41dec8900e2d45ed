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
    INTEGERS_OFF_GRID,
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

_JOINING = frozenset({aten.cat.default, aten.stack.default})


def to_containers(graph: torch.fx.Graph) -> None:
    """Rewrite `graph` in place: fp16 becomes fp32, with one rounding after every op that is not exact.

    Raises:
        Error: an op that looks at the bits of fp16 values, or a product of fp16 and fp32 operands.
    """
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
            _round_after(graph, node, node)
        for argument in written_arguments(node):
            if is_half(argument) and aliased_argument(node) is not argument:
                _round_after(graph, node, argument)


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
        return dtype_of(source) not in INTEGERS_OFF_GRID and dtype_of(source) is not torch.float32
    if node.target not in EXACT and node.target not in SELECTING:
        return False
    dtypes = {dtype_of(argument) for argument in node.all_input_nodes}
    return torch.float32 not in dtypes and not (node.target in _JOINING and dtypes & INTEGERS_OFF_GRID)


def _parent(node: Node) -> Node:
    parent = node.args[0]
    assert isinstance(parent, Node)
    return parent


def _is_saved(node: Node) -> bool:
    """Whether `node` is a result that forward keeps for its own backward op, and for nothing else."""
    return node.args[1] in SAVED.get(_parent(node).target, ()) and all(
        u.target in READERS_OF_SAVED for u in node.users
    )


def _round_after(graph: torch.fx.Graph, node: Node, value: Node) -> None:
    """Insert a rounding of `value` right after `node`."""
    with graph.inserting_after(node):
        rounding = graph.call_function(round_to_half_, (value,))
    rounding.meta = {k: v for k, v in node.meta.items() if k != "hints"}
    rounding.meta["spec"] = value.meta["spec"]
