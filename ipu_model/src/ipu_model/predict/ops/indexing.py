"""Rows that are picked, or written, by index: embeddings, gathers and their gradients, scatters."""

from __future__ import annotations

import math
from dataclasses import replace

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.moves import copied
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, costs
from ipu_model.predict.planner import distinct


def scatter(device: Device, table_rows: int, row: int, updates: int, element: Element) -> Work:
    """Return the work of writing (or adding) `updates` rows into a zeroed or copied table."""
    best = gather(device, table_rows, row, updates, element, adding=True)
    held = device.spread(table_rows * row, element)
    cycles = best.cycles + Cycles(compute=vertices.fill(device, held, element))
    return Work("embedding", cycles, temporary_bytes=best.temporary_bytes, outputs_on_busiest_tile=held)


def gather(device: Device, table_rows: int, row: int, lookups: int, element: Element, *, adding: bool = False) -> Work:
    """Return the work of picking `lookups` rows of `row` elements out of a table of `table_rows`, or `adding` to them.

    The best way to spread the table's rows, its columns and the lookups over tiles is taken. Every tile sees all the
    indices of its lookups; where the table's rows are spread, results are added up.
    """
    tiles, works = device.chip.tiles, []
    columns = max(1, math.ceil(row * element.bytes / 8))
    for column_parts in (int(c) for c in distinct(columns, tiles)):
        free, width = tiles // column_parts, math.ceil(row / column_parts)
        for row_parts in {1, min(table_rows, math.isqrt(free)), min(table_rows, free)}:
            lookup_parts = max(1, min(lookups, free // row_parts))
            seen = math.ceil(lookups / lookup_parts)
            hits = math.ceil(seen / row_parts)
            compute = vertices.multi_slice(device, hits, seen - hits, width, element)
            results, table = seen * width, math.ceil(table_rows / row_parts) * width
            # The table is stored once: copies of it for other lookups are sent (or their gradients collected).
            summed = row_parts > 1 or adding
            sent = table * (1 - 1 / lookup_parts) + (results if summed else 0)
            cycles = Cycles(compute=compute) + device.exchange(4 * seen)
            cycles += device.exchange(sent * element.bytes, 2 if summed else 1)
            temporary, held = results + (table if lookup_parts > 1 else 0), math.ceil(results / row_parts)
            works.append(Work("embedding", cycles, temporary * element.bytes, outputs_on_busiest_tile=held))
    return min(works, key=lambda work: device.total(work.cycles))


@costs("embedding index_select gather index take take_along_dim _unsafe_index")
def cost_gather(op: OpView) -> OpWork:
    table = op.needed(0)
    rows, row = _table(op, table)
    lookups = math.ceil(op.output().elements / max(1, row))
    return op.takes(gather(op.device, rows, row, lookups, table.element))


@costs(
    "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy index_fill put masked_scatter"
)
def cost_scatter(op: OpView) -> OpWork:
    table = op.needed(0)
    rows, row = _table(op, table)
    source = max((o.elements for o in op.operands() if o.tensor is not table.tensor), default=row)
    work = scatter(op.device, rows, row, math.ceil(source / max(1, row)), table.element)
    return op.takes(work.plus(copied(op.device, table.on_tile, table.element).cycles))


@costs("_embedding_bag _embedding_bag_forward_only")
def cost_embedding_bag(op: OpView) -> OpWork:
    table, indices = op.needed(0), op.needed(1)
    rows, row = table.shape
    picked = gather(op.device, rows, row, indices.elements, table.element)
    elements = indices.elements * row
    on_tile = op.device.spread(elements, table.element)
    summed = reduced(op.device, elements, on_tile, op.output().elements, table.element)
    temporary = max(picked.temporary_bytes, summed.temporary_bytes)
    return op.takes(replace(summed.plus(picked.cycles), family=picked.family, temporary_bytes=temporary))


@costs("embedding_dense_backward", "_embedding_bag_backward", words={"embedding_dense_backward": "embedding backward"})
def cost_embedding_gradient(op: OpView) -> OpWork:
    """Cost the gradient of an embedding: rows of the incoming gradient are added up by index."""
    gradient, indices = op.needed(0), op.needed(1)
    rows, row = op.output().shape
    return op.takes(scatter(op.device, rows, row, indices.elements, gradient.element))


def _table(op: OpView, table: Operand) -> tuple[int, int]:
    shape = table.shape or (1,)
    if op.kind in ("embedding", "index_select", "index_add", "index_copy", "index_fill"):
        dim = 0 if op.kind == "embedding" else int(op.argument(1, "dim", 0))
        return shape[dim], table.elements // max(1, shape[dim])
    if op.kind in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        chosen = [size for size, index in zip(shape, op.argument(1)) if index is not None]
        rows = math.prod(chosen)
        return rows, table.elements // max(1, rows)
    return table.elements, 1
