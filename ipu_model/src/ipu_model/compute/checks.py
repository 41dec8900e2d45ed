"""What a replay looks for in results (floating-point exceptions, clipping), and how errors name op and line."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ipu_model.capture.graph import changeable_arguments, info_of, is_half, is_view, op_of, spec_of
from ipu_model.compute.half_precision import COMPARING, EXACT, SELECTING, make_nan_, overloads
from ipu_model.compute.rounding import LARGEST_HALF, clip_to_half_, round_to_half_
from ipu_model.errors import Error

Node = torch.fx.Node

_logger = logging.getLogger("ipu_model.compute.clipping_report")

# A line of the code that torch.fx generates for a graph: the node's name, perhaps its type, and its call.
_ASSIGNS = re.compile(r"(\w+)( : [^=]+)? = ")
_GENERATED = "<eval_with_key>"

# Comparisons that are undefined for NaN; equality is defined.
_ORDERING = overloads("lt.Scalar le.Scalar gt.Scalar ge.Scalar lt.Tensor le.Tensor gt.Tensor ge.Tensor")
# They only move values; an infinity that the program itself writes is not an exception.
_QUIET = (EXACT | SELECTING | COMPARING) - _ORDERING

# They are inserted after ops of half precision.
_TIDYING = frozenset({round_to_half_, make_nan_, clip_to_half_})


def located(error: Exception, ops: torch.fx.Graph) -> Error | None:
    """Return what `failure_at` does of the node that raised `error`, if it is known."""
    # The name of the node is in the line of generated code that raised the error.
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_GENERATED)]
    assigned = _ASSIGNS.match(lines[-1]) if lines and lines[-1] else None
    node = next((node for node in ops.nodes if assigned is not None and node.name == assigned.group(1)), None)
    return None if node is None else failure_at(node, error)


def failure_at(node: Node, error: Exception) -> Error | None:
    """Return an error with the op and the user's line; `None` for our own and for those of users' functions."""
    if isinstance(error, Error) or info_of(node).marks.function is not None:
        return None
    what = str(error).strip().rstrip(".") or type(error).__name__
    return Error(f"{what} ({place_of(node)}).", type="poplar_application_runtime_error")


def place_of(node: Node) -> str:
    info = info_of(node)
    phase = "" if info.phase is None else f", {info.phase.value} pass"
    line = "" if info.line is None else f", {info.line}"
    return f"{node.target} in module '{info.scope or 'model'}'{phase}{line}"


class NonFinite(NamedTuple):
    nan: bool = False
    infinity: bool = False


def look(*values: Any) -> NonFinite:
    tensors = [v if isinstance(v, Tensor) else torch.tensor(v) for v in values if isinstance(v, (Tensor, float))]
    floating = [t for t in tensors if t.is_floating_point()]
    return NonFinite(any(bool(t.isnan().any()) for t in floating), any(bool(t.isinf().any()) for t in floating))


def check_every_result(graph: torch.fx.Graph) -> None:
    """Insert a check after every op of `graph` that computes; call it last, after every other pass."""
    for node in list(graph.nodes):
        quiet = node.target in _QUIET or node.target in _TIDYING or info_of(node).phase is None
        if node.op != "call_function" or quiet or is_view(node):
            continue
        spec = spec_of(node)
        if spec is None or not (spec.dtype.is_floating_point or node.target in _ORDERING):
            continue
        op = op_of(node)
        numbers = [n for n in tree_leaves((op.args, op.kwargs)) if isinstance(n, float)]
        before, untouched = _operands_before(graph, op)
        is_rounded = any(user.target in _TIDYING for user in node.users)
        with graph.inserting_after(node):
            graph.call_function(require_valid, (node, is_rounded, place_of(op), before, *untouched, *numbers))


def _operands_before(graph: torch.fx.Graph, op: Node) -> tuple[Node, list[Node]]:
    """Insert before `op` a check of the operands that it overwrites; return that check and the other operands."""
    read, written = op.all_input_nodes, changeable_arguments(op)
    with graph.inserting_before(op):
        before = graph.call_function(look, tuple(n for n in read if n in written))
    return before, [n for n in read if n not in written]


def require_valid(result: Tensor, is_rounded: bool, place: str, before: NonFinite, *inputs: Any) -> None:
    """Raise an error that names the op if a NaN or an infinity in its result did not come from its operands.

    The result `is_rounded` to float16 only after this.
    """
    if not result.is_floating_point():
        if before.nan or look(*inputs).nan:
            raise _exception(place, "compared numbers with NaN")
        return
    made = look(result.half() if is_rounded else result)
    if not (made.nan or made.infinity):
        return
    given = look(*inputs)
    if made.nan and not (before.nan or given.nan):
        raise _exception(place, "has no real result: it made a NaN out of inputs without NaN")
    if made.infinity and not any((*before, *given)):
        raise _exception(place, "overflowed or divided by zero: it made an infinity out of finite numbers")


def _exception(place: str, what: str) -> Error:
    return Error(f"Floating point exception: an op {what} ({place}).", type="poplar_application_runtime_error")


def report_first_clipping(graph: torch.fx.Graph) -> None:
    """Count, before every clipping of `graph`, what lies beyond the range, and log the first op that has any."""
    reported = False

    def note_clipping(result: Tensor, place: str, before: NonFinite, *operands: Tensor) -> None:
        nonlocal reported
        beyond = 0 if reported else int(result.half().isinf().sum())
        # An infinity that the program wrote itself, such as a mask, is not an overflow.
        if not beyond or before.infinity or look(*operands).infinity:
            return
        reported = True
        text = (
            "Half-precision results were clipped to +-%d: %d of %d values (%s). A device would continue and "
            "report nothing. Later ops are not checked."
        )
        _logger.warning(text, LARGEST_HALF, beyond, result.numel(), place)

    def clipped_op(node: Node) -> Node:
        while node.target in _TIDYING:
            node = node.prev
        return op_of(node)

    # Every op is found before anything is inserted between it and its clippings.
    ops = {node: clipped_op(node) for node in graph.nodes if node.target is clip_to_half_}
    for node, op in ops.items():
        before, untouched = _operands_before(graph, op)
        halves = [operand for operand in untouched if is_half(operand)]
        with graph.inserting_before(node):
            graph.call_function(note_clipping, (node.args[0], place_of(op), before, *halves))
