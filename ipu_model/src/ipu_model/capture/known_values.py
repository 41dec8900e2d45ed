"""Values that a trace knows: of tensors made of constants alone, such as a mask that forward makes with torch.eye."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.aliases import storage_roots, written_arguments
from ipu_model.capture.torch_private import modes_disabled

Node = torch.fx.Node

# Ops whose result depends on no more of their first argument than its shape and type.
_SHAPE_ONLY = frozenset({"ones_like", "zeros_like", "full_like", "empty_like", "new_ones", "new_zeros", "new_full",
                         "new_empty"})  # fmt: skip
_MASKS = (torch.bool, torch.uint8)


def known_values(
    wanted: Sequence[Node], constants: Mapping[str, Tensor], changeable: Collection[str]
) -> list[Tensor] | None:
    """Return the present values of `wanted`, nodes of one unfinished graph, or None if they depend on data.

    `constants` are the tensors of its `get_attr` nodes. Those of them in `changeable` outlive a call: what forward
    writes to them makes them unknown. Nothing is written to the tensors of `constants`.
    """
    needed = _needed(wanted, changeable)
    if needed is None:
        return None
    values: dict[Node, Any] = {}

    def value_of(node: Node) -> Any:
        return values[node] if node in values else _blank(node)

    with modes_disabled(), torch.no_grad():
        for node in needed:
            if node.op == "get_attr":
                values[node] = constants[str(node.target)].clone()
            else:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # an op of torch
        return [values[node].clone() for node in wanted]


def is_data_dependent(op: Any) -> bool:
    """Whether the shape of an op's result, or a Python number that it returns, depends on the values of tensors."""
    return torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags


def is_mask(index: Any) -> bool:
    """Whether an index picks places by true and false."""
    return isinstance(index, Tensor) and index.dtype in _MASKS


def places(mask: Tensor) -> tuple[Tensor, ...]:
    """Return the whole-number indices, one tensor for each dimension, of the places that `mask` picks."""
    with modes_disabled():
        return torch.nonzero(mask, as_tuple=True)


def _needed(wanted: Sequence[Node], changeable: Collection[str]) -> list[Node] | None:
    """Return the ops and constants that the present values of `wanted` come from, in order; None if data are."""
    graph = wanted[0].graph
    roots = storage_roots(graph)
    writers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for argument in written_arguments(node):
            writers.setdefault(roots[argument], []).append(node)
    found: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        written = writers.get(roots[node], [])
        if not _is_constant(node) or (node.op == "get_attr" and written and node.target in changeable):
            return None
        found.add(node)
        waiting += [*_sources(node), *written, roots[node]]
    return [node for node in graph.nodes if node in found]


def _is_constant(node: Node) -> bool:
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _sources(node: Node) -> list[Node]:
    name = getattr(node.target, "_schema", None)
    if name is not None and name.name.removeprefix("aten::") in _SHAPE_ONLY:
        return [source for source in node.all_input_nodes if source is not node.args[0]]
    return node.all_input_nodes


def _blank(node: Node) -> Tensor:
    """Return a tensor of the node's shape and type, for an op that asks no more of it."""
    spec = node.meta["spec"]
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
