"""Half precision as a graph pass: fp16 values live in fp32 tensors, on the fp16 grid.

Every op computes in fp32 and its result is rounded once, as the device does with fp16 storage and fp32 arithmetic;
this is many times faster on a CPU than arithmetic on fp16 tensors.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ipu_model.capture.aliases import is_view
from ipu_model.graph import TensorSpec
from ipu_model.numerics.rounding import round_to_half_

Node = torch.fx.Node
aten = torch.ops.aten

# Results of these are on the grid if their fp16 arguments are: they select, move or negate values.
EXACT: frozenset[object] = frozenset({
    aten.relu.default, aten.relu_.default, aten.threshold_backward.default, aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default, aten.amax.default, aten.amin.default, aten.max.default, aten.min.default,
    aten.max.dim, aten.min.dim, aten.maximum.default, aten.minimum.default, aten.neg.default, aten.abs.default,
    aten.sign.default, aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.embedding.default,
    aten.cat.default, aten.stack.default, aten.clone.default, aten._unsafe_view.default, aten.flip.default,
    aten.roll.default, aten.repeat.default, aten.topk.default, aten.sort.default, aten.select_backward.default,
    aten.slice_backward.default, aten.zeros.default, aten.zeros_like.default, aten.ones.default,
    aten.ones_like.default, aten.empty.memory_format, aten.empty_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_empty.default, aten.new_empty_strided.default, aten.empty_strided.default,
    aten.bernoulli_.float, aten.zero_.default, aten.upsample_nearest1d.default, aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default, aten.reflection_pad2d.default, aten.tril.default, aten.triu.default,
    aten.round.default, aten.floor.default, aten.ceil.default, aten.trunc.default,
})  # fmt: skip

# Statistics saved for the backward pass stay in fp32 on the device: results 1 and 2 of these.
_SAVED_STATISTICS = frozenset({
    aten.native_batch_norm.default, aten.native_layer_norm.default, aten.native_group_norm.default,
})  # fmt: skip
_RUNNING_STATISTICS = (3, 4)


def to_containers(graph: torch.fx.Graph) -> None:
    """Rewrite `graph` in place: fp16 becomes fp32, with one rounding after every op that is not exact."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        node.args = _widened(node.args)
        node.kwargs = _widened(node.kwargs)
        if _needs_rounding(node):
            _round_after(graph, node, node)
        if node.target is aten.native_batch_norm.default:
            _round_running_statistics(graph, node)


def _widened(arguments: Any) -> Any:
    """Replace every dtype argument float16 by float32."""
    return torch.fx.node.map_aggregate(arguments, lambda a: torch.float32 if a is torch.float16 else a)


def _needs_rounding(node: Node) -> bool:
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or spec.dtype is not torch.float16 or is_view(node):
        return False
    if node.target is operator.getitem:
        parent, index = node.args
        assert isinstance(parent, Node)
        if parent.target in _SAVED_STATISTICS and index != 0:
            return False
        return parent.target not in EXACT
    if node.target is aten._to_copy.default and _is_half(node.args[0]):
        return False
    return node.target not in EXACT


def _is_half(value: Any) -> bool:
    spec = value.meta.get("spec") if isinstance(value, Node) else None
    return isinstance(spec, TensorSpec) and spec.dtype is torch.float16


def _round_after(graph: torch.fx.Graph, node: Node, value: Node) -> None:
    """Insert a rounding of `value` right after `node`."""
    with graph.inserting_after(node):
        rounding = graph.call_function(round_to_half_, (value,))
    rounding.meta = {k: v for k, v in node.meta.items() if k != "hints"}


def _round_running_statistics(graph: torch.fx.Graph, node: Node) -> None:
    """Running statistics held in fp16 buffers are rounded where the op has updated them."""
    for position in _RUNNING_STATISTICS:
        statistic = node.args[position]
        if node.args[5] and _is_half(statistic):
            assert isinstance(statistic, Node)
            _round_after(graph, node, statistic)
