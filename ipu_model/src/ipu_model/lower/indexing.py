"""Rules for rows that are picked, or written, by index."""

from __future__ import annotations

import math
from dataclasses import replace

from ipu_model.cost import copies, embedding, reduction
from ipu_model.lower.view import Operand, OpView, Result, Rule, result

_GATHERS = ("embedding", "index_select", "gather", "index", "take", "take_along_dim", "_unsafe_index")
_SCATTERS = (
    "scatter", "scatter_add", "scatter_reduce", "index_put", "_unsafe_index_put", "index_add", "index_copy",
    "index_fill", "put", "masked_scatter",
)  # fmt: skip


def rules() -> dict[str, Rule]:
    """Return the rule of each gather and scatter."""
    found: dict[str, Rule] = dict.fromkeys(_GATHERS, lower_gather)
    found |= dict.fromkeys(_SCATTERS, lower_scatter)
    found |= dict.fromkeys(("embedding_dense_backward", "_embedding_bag_backward"), lower_embedding_gradient)
    return found | dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), lower_embedding_bag)


def lower_gather(op: OpView) -> Result:
    """Cost picking rows (or single elements) of a tensor."""
    table = op.needed(0)
    rows, row = _table(op, table)
    lookups = math.ceil(op.output().elements / max(1, row))
    return result(op, embedding.gather(op.device, rows, row, lookups, table.element))


def lower_scatter(op: OpView) -> Result:
    """Cost writing rows (or single elements) into a copy of a tensor."""
    table = op.needed(0)
    rows, row = _table(op, table)
    source = max((o.elements for o in op.operands() if o.tensor is not table.tensor), default=row)
    work = embedding.scatter(op.device, rows, row, math.ceil(source / max(1, row)), table.element)
    kept = copies.copied(op.device, table.on_tile, table.element)
    return result(op, work.plus(kept.cycles))


def lower_embedding_bag(op: OpView) -> Result:
    """Cost picking rows of a table and adding up those of a bag."""
    table, indices = op.needed(0), op.needed(1)
    rows, row = table.shape
    picked = embedding.gather(op.device, rows, row, indices.elements, table.element)
    elements = indices.elements * row
    on_tile = op.device.spread(elements, table.element)
    summed = reduction.reduced(op.device, elements, on_tile, op.output().elements, table.element)
    temporary = max(picked.temporary_bytes, summed.temporary_bytes)
    return result(op, replace(summed.plus(picked.cycles), family=picked.family, temporary_bytes=temporary))


def lower_embedding_gradient(op: OpView) -> Result:
    """Cost the gradient of an embedding: rows of the incoming gradient are added up by index."""
    gradient, indices = op.needed(0), op.needed(1)
    rows, row = op.output().shape
    return result(op, embedding.scatter(op.device, rows, row, indices.elements, gradient.element))


def _table(op: OpView, table: Operand) -> tuple[int, int]:
    """Return how many rows there are to choose from, and the elements of one."""
    shape = table.shape or (1,)
    if op.name in ("embedding", "index_select", "index_add", "index_copy", "index_fill"):
        dim = 0 if op.name == "embedding" else int(op.argument(1, "dim", 0))
        return shape[dim], table.elements // max(1, shape[dim])
    if op.name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        chosen = [size for size, index in zip(shape, op.argument(1)) if index is not None]
        rows = math.prod(chosen)
        return rows, table.elements // max(1, rows)
    return table.elements, 1
