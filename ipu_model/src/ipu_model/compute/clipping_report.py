"""Name the first op whose half-precision results were clipped, once for each compiled program."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
import torch.fx
from torch import Tensor

from ipu_model.compute.exceptions import Found, look, operands_before, tidied_up
from ipu_model.compute.failures import place_of
from ipu_model.compute.half_precision import is_half
from ipu_model.compute.rounding import LARGEST_HALF, clip_

Node = torch.fx.Node

_logger = logging.getLogger(__name__)

Note = Callable[..., None]


def report_first_clipping(graph: torch.fx.Graph) -> None:
    """Insert a count of the elements beyond the range before every clipping of `graph`; log the first op that has any.

    Accumulators and weight updates are not checked, because they are no ops of the graph.
    """
    note = _once()
    # Every op is found before anything is inserted between it and its clippings.
    ops = {node: tidied_up(node) for node in graph.nodes if node.target is clip_}
    for node, op in ops.items():
        before, untouched = operands_before(graph, op)
        halves = [operand for operand in untouched if is_half(operand)]
        with graph.inserting_before(node):
            graph.call_function(note, (node.args[0], place_of(op), before, *halves))


def _once() -> Note:
    """Return a function that logs the first clipping that it sees."""
    reported = False

    def note_clipping(result: Tensor, place: str, before: Found, *operands: Tensor) -> None:
        nonlocal reported
        if reported:
            return
        beyond = int(result.isinf().sum())
        # An infinity that the program wrote itself, such as a mask, is not an overflow.
        if not beyond or before.infinity or look(*operands).infinity:
            return
        reported = True
        _logger.warning(
            "Half-precision results were clipped to +-%d: %d of %d values (%s). A device would continue and "
            "report nothing. Later ops are not checked.", LARGEST_HALF, beyond, result.numel(), place,
        )  # fmt: skip

    return note_clipping
