"""Floating-point exceptions: stop at the first op that overflows, divides by zero or has no real result."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ipu_model.capture.aliases import is_view, written_arguments
from ipu_model.capture.graph import TensorSpec
from ipu_model.compute.exact import COMPARING, EXACT, SELECTING
from ipu_model.compute.failures import place_of
from ipu_model.compute.half_range import make_nan_
from ipu_model.compute.rounding import clip_, round_to_half_
from ipu_model.errors import Error

Node = torch.fx.Node
aten = torch.ops.aten

# Comparisons that are undefined for NaN; equality is defined.
_ORDERING = frozenset({
    getattr(getattr(aten, name), overload)
    for name in ("lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
})  # fmt: skip
# They only move values; an infinity that the program itself writes is not an exception.
_QUIET = (EXACT | SELECTING | COMPARING) - _ORDERING

# They are inserted after ops of half precision.
_TIDYING = frozenset({round_to_half_, make_nan_, clip_})


class Found(NamedTuple):
    """Whether some tensors hold NaN or infinities."""

    nan: bool = False
    infinity: bool = False


def check_every_result(graph: torch.fx.Graph) -> None:
    """Insert a check after every op of `graph` that computes; call it last, after every other pass."""
    for node in list(graph.nodes):
        if _is_checked(node):
            _insert_check(graph, node)


def _is_checked(node: Node) -> bool:
    quiet = node.target in _QUIET or node.target in _TIDYING or "phase" not in node.meta
    if node.op != "call_function" or quiet or is_view(node):
        return False
    spec = node.meta.get("spec")
    return isinstance(spec, TensorSpec) and (spec.dtype.is_floating_point or node.target in _ORDERING)


def _insert_check(graph: torch.fx.Graph, node: Node) -> None:
    source = _source(node)
    numbers = [n for n in tree_leaves((source.args, source.kwargs)) if isinstance(n, float)]
    before, untouched = operands_before(graph, source)
    rounding = node.next if node.next.target is round_to_half_ and node.next.args[0] is node else node
    with graph.inserting_after(rounding):
        graph.call_function(require_valid, (node, place_of(source), before, *untouched, *numbers))


def operands_before(graph: torch.fx.Graph, op: Node) -> tuple[Node, list[Node]]:
    """Insert before `op` a check of the operands that it overwrites; return that check and the other operands."""
    read, written = op.all_input_nodes, written_arguments(op)
    with graph.inserting_before(op):
        before = graph.call_function(look, tuple(n for n in read if n in written))
    return before, [n for n in read if n not in written]


def tidied_up(node: Node) -> Node:
    """Return the op after which `node` was inserted to round, clip or mark its results."""
    while node.target in _TIDYING:
        node = node.prev
    return _source(node)


def _source(node: Node) -> Node:
    """Return the op that computes `node`, which may be one of its several results."""
    if node.target is not operator.getitem:
        return node
    parent = node.args[0]
    assert isinstance(parent, Node)
    return parent


def look(*values: Any) -> Found:
    """Tell whether tensors (or numbers) hold NaN or infinities."""
    tensors = [v if isinstance(v, Tensor) else torch.tensor(v) for v in values if isinstance(v, (Tensor, float))]
    floating = [t for t in tensors if t.is_floating_point()]
    return Found(any(bool(t.isnan().any()) for t in floating), any(bool(t.isinf().any()) for t in floating))


def require_valid(result: Tensor, place: str, before: Found, *inputs: Any) -> None:
    """Raise if `result` holds a NaN or an infinity that did not come from the operands.

    Raises:
        Error: names the op, its module and the exception.
    """
    if not result.is_floating_point():
        if before.nan or look(*inputs).nan:
            raise _exception(place, "compared numbers with NaN")
        return
    made = look(result)
    if not (made.nan or made.infinity):
        return
    given = look(*inputs)
    if made.nan and not (before.nan or given.nan):
        raise _exception(place, "has no real result: it made a NaN out of inputs without NaN")
    if made.infinity and not any((*before, *given)):
        raise _exception(place, "overflowed or divided by zero: it made an infinity out of finite numbers")


def _exception(place: str, what: str) -> Error:
    return Error(f"Floating point exception: an op {what} ({place}).", type="poplar_application_runtime_error")
