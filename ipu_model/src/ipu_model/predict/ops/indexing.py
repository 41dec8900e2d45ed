"""Rows that are picked, or written, by index: embeddings, gathers and their gradients, scatters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ipu_model.predict import vertices
from ipu_model.predict.device import DEFAULT_PROPORTION, Cycles, Device, Element, Work
from ipu_model.predict.ops.moves import copied
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.reductions import reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, costs
from ipu_model.predict.planner import distinct
from ipu_model.step import Step, Tensor


@dataclass(frozen=True)
class Part:
    """What a tile has of a table and its lookups: `width` columns of `held` rows, and the indices of `seen` lookups.

    There are `row_parts` parts of the rows; `is_copied` tells whether several tiles have the same one.
    """

    element: Element
    row_parts: int
    width: int
    held: int
    seen: int
    is_copied: bool

    @property
    def hits(self) -> int:
        """The lookups that concern the tile's own rows, if all rows are looked up equally often."""
        return math.ceil(self.seen / self.row_parts)

    @property
    def copies(self) -> int:
        """The elements of the table that other tiles have as well."""
        return self.held * self.width if self.is_copied else 0

    def bytes(self, elements: int) -> int:
        """Return the bytes of some elements and of all indices."""
        return elements * self.element.bytes + self.seen * Element.INT.bytes


def gather(
    device: Device, table_rows: int, row: int, lookups: int, element: Element, proportion: float = DEFAULT_PROPORTION
) -> Work:
    """Return the work of picking `lookups` rows of `row` elements out of a table of `table_rows`."""
    works = [_picking(device, part) for part in _parts(device, table_rows, row, lookups, element)]
    work, constants = _fastest(device, works, proportion), device.constants
    fixed = constants.gather_fixed_cycles + (work.cycles.phases - 1) * constants.gather_second_stage_cycles
    held = device.spread(lookups * row, element)
    work = work.plus(copied(device, held, element, moved=held).cycles).plus(Cycles(compute=fixed))
    return replace(work, outputs_on_busiest_tile=held)


def scatter(
    device: Device, table_rows: int, row: int, updates: int, element: Element, proportion: float = DEFAULT_PROPORTION
) -> Work:
    """Return the work of adding (or writing) `updates` rows to a table of zeros."""
    works = [_adding(device, part) for part in _parts(device, table_rows, row, updates, element, whole=True)]
    work, held = _fastest(device, works, proportion), device.spread(table_rows * row, element)
    work = work.plus(Cycles(compute=vertices.fill(device, held, element)))
    return replace(work.plus(copied(device, held, element, moved=held).cycles), outputs_on_busiest_tile=held)


def added(device: Device, table: int, element: Element) -> Cycles:
    """Return the cycles of adding a tensor of `table` elements, which lies elsewhere, to what was scattered."""
    held = device.spread(table, element)
    sums = pointwise(device, held, element, ("add",), 2, in_place=True)
    return copied(device, held, element, moved=held).cycles + sums.cycles


def _parts(
    device: Device, table_rows: int, row: int, lookups: int, element: Element, *, whole: bool = False
) -> Iterator[Part]:
    """Return the ways to cut, with as many parts of the lookups as tiles allow; eight bytes of a row stay together.

    Lookups may also stay `whole`: parts of updates have to be added up.
    """
    group = max(1, 8 // element.bytes)
    groups = math.ceil(row / group)
    for columns in map(int, distinct(groups, device.chip.tiles)):
        width, free = min(row, group * math.ceil(groups / columns)), device.chip.tiles // columns
        for row_parts in (2**power for power in range(min(max(1, table_rows), free).bit_length())):
            held, most = math.ceil(table_rows / row_parts), max(1, min(lookups, free // row_parts))
            for parts in {most, 1 if whole else most}:
                yield Part(element, row_parts, width, held, math.ceil(lookups / parts), parts > 1)


def _fastest(device: Device, works: Sequence[Work], proportion: float) -> Work:
    """Return the fastest plan whose temporary memory stays within the proportion, or else one with the least."""
    bound = max(proportion * device.chip.tile_bytes, min(work.temporary_bytes for work in works))
    return min((w for w in works if w.temporary_bytes <= bound), key=lambda work: device.total(work.cycles))


def _picking(device: Device, part: Part) -> Work:
    """Return the work of a lookup: tiles get indices and copies of rows, and pick what they have.

    Where the rows of the table are spread, a second stage picks each result from the tile that has it.
    """
    results = part.seen * part.width
    compute = vertices.multi_slice(device, part.hits, part.seen - part.hits, part.width, part.element)
    cycles = Cycles(compute=compute) + device.exchange(part.bytes(part.copies))
    if part.row_parts == 1:
        return Work("embedding", cycles, part.bytes(part.copies + results))
    temporary = part.bytes(part.copies + results + part.hits * part.width)
    return Work("embedding", cycles + device.exchange(part.bytes(results)), temporary)


def _adding(device: Device, part: Part) -> Work:
    """Return the work of an update: tiles get rows and indices, and add what concerns them to zeros.

    Copies are then added up.
    """
    element, updates, copies = part.element, part.seen * part.width, part.copies
    compute = vertices.multi_update(device, part.hits, part.seen, part.width, element)
    compute += vertices.copy(device, updates, element) + vertices.fill(device, part.held * part.width, element)
    cycles = device.exchange(part.bytes(updates))
    if copies:
        compute += vertices.copy(device, copies, element) + vertices.reduce_rows(device, copies, element)
        cycles += device.exchange(copies * element.bytes)
    return Work("embedding", cycles + Cycles(compute=compute), part.bytes(updates + 2 * copies))


@costs("embedding index_select gather index take take_along_dim _unsafe_index")
def cost_gather(op: OpView) -> OpWork:
    table = op.needed(0)
    rows, row = _rows(op, table)
    return op.takes(gather(op.device, rows, row, math.ceil(op.output().elements / row), table.element, op.proportion))


@costs(
    "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy index_fill index_reduce put "
    "masked_scatter"
)
def cost_scatter(op: OpView) -> OpWork:
    table = op.needed(0)
    rows, row = _rows(op, table)
    values = [operand for operand in op.operands() if operand.tensor is not table.tensor]
    updates = max((math.ceil(operand.elements / row) for operand in values), default=1)
    # A number may be written to all rows that are indexed.
    updates = max(updates, *(index.elements for index in _indices_of_rows(op)), 1)
    work = scatter(op.device, rows, row, updates, table.element, op.proportion)
    return op.takes(work.plus(added(op.device, table.elements, table.element)))


@costs("_embedding_bag _embedding_bag_forward_only")
def cost_embedding_bag(op: OpView) -> OpWork:
    table, indices = op.needed(0), op.needed(1)
    rows, row = table.shape
    picked = gather(op.device, rows, row, indices.elements, table.element, op.proportion)
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
    return op.takes(scatter(op.device, rows, row, indices.elements, gradient.element, op.proportion))


_BY_DIMENSION = ("index_select", "index_add", "index_copy", "index_fill", "index_reduce")
_BY_POSITION = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
_BY_ELEMENT = ("gather", "scatter", "scatter_add", "scatter_reduce")


def _indices_of_rows(op: OpView) -> list[Operand]:
    chosen = op.argument(1) if op.kind in _BY_POSITION else (op.argument(2),) if op.kind in _BY_DIMENSION else ()
    return [operand for operand in op.operands() if operand.tensor.name in chosen]


def _before_conversion(step: Step, index: Tensor) -> Tensor:
    """Return an index as it was before its type changed, or negative ones were wrapped: perhaps expanded."""
    maker = step.producer(index.name)
    while maker is not None and maker.kind in ("_to_copy", "remainder"):
        index = step.tensors[maker.reads[0]]
        maker = step.producer(index.name)
    return index


def _rows(op: OpView, table: Operand) -> tuple[int, int]:
    """Return how many rows a table has for this op, and their length.

    Where each element has an index, a dimension along which the index was expanded belongs to the rows.
    """
    shape, row = table.shape or (1,), 1
    if op.kind == "embedding":
        row = table.elements // max(1, shape[0])
    elif op.kind in _BY_DIMENSION:
        row = table.elements // max(1, shape[int(op.argument(1, "dim", 0))])
    elif op.kind in _BY_POSITION:
        row = table.elements // max(1, math.prod(size for size, index in zip(shape, op.argument(1)) if index))
    elif op.kind in _BY_ELEMENT:
        dim, index = int(op.argument(1, "dim", 0)) % len(shape), _before_conversion(op.step, op.needed(2).tensor)
        row = math.prod(index.shape[axis] for axis, stride in enumerate(index.stride) if not stride and axis != dim)
    row = max(1, row)
    return max(1, math.ceil(table.elements / row)), row
