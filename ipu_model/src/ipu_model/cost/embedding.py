"""Rows picked by index: embeddings, gathers and their gradients (scatters), and ordering."""

from __future__ import annotations

import math

from ipu_model.cost import vertices
from ipu_model.cost.device import Device, Element
from ipu_model.cost.exchange import exchange
from ipu_model.cost.splits import distinct
from ipu_model.cost.work import Cycles, Work


def gather(device: Device, table_rows: int, row: int, lookups: int, element: Element) -> Work:
    """Return the work of picking `lookups` rows of `row` elements out of a table of `table_rows`."""
    return min(_plans(device, table_rows, row, lookups, element, adding=False), key=lambda w: device.total(w.cycles))


def scatter(device: Device, table_rows: int, row: int, updates: int, element: Element) -> Work:
    """Return the work of writing (or adding) `updates` rows into a zeroed or copied table."""
    best = min(_plans(device, table_rows, row, updates, element, adding=True), key=lambda w: device.total(w.cycles))
    held = device.spread(table_rows * row, element)
    return Work(
        "embedding", best.cycles + Cycles(compute=vertices.fill(device, held, element)),
        temporary_bytes=best.temporary_bytes, outputs_on_busiest_tile=held,
    )  # fmt: skip


def _plans(device: Device, table_rows: int, row: int, lookups: int, element: Element, *, adding: bool) -> list[Work]:
    """Return the work of each way to spread the table's rows, its columns and the lookups over tiles.

    Every tile sees all the indices of its lookups; where the table's rows are spread, results are added up.
    """
    tiles = device.chip.tiles
    columns = max(1, math.ceil(row * element.bytes / 8))
    found = []
    for column_parts in (int(c) for c in distinct(columns, tiles)):
        free = tiles // column_parts
        for row_parts in {1, min(table_rows, math.isqrt(free)), min(table_rows, free)}:
            lookup_parts = max(1, min(lookups, free // row_parts))
            found.append(
                _split(device, table_rows, row, lookups, element, (row_parts, column_parts, lookup_parts), adding)
            )
    return found


def _split(
    device: Device,
    table_rows: int,
    row: int,
    lookups: int,
    element: Element,
    parts: tuple[int, int, int],
    adding: bool,
) -> Work:
    row_parts, column_parts, lookup_parts = parts
    seen, width = math.ceil(lookups / lookup_parts), math.ceil(row / column_parts)
    hits = math.ceil(seen / row_parts)
    compute = vertices.multi_slice(device, hits, seen - hits, width, element)
    results = seen * width
    table = math.ceil(table_rows / row_parts) * width
    # The table is stored once: copies of it for other lookups are sent (or their gradients collected).
    sent = table * (1 - 1 / lookup_parts) + (results if row_parts > 1 or adding else 0)
    phases = 2 if row_parts > 1 or adding else 1
    cycles = Cycles(compute=compute) + exchange(device, 4 * seen) + exchange(device, sent * element.bytes, phases)
    temporary = (results + (table if lookup_parts > 1 else 0)) * element.bytes
    return Work("embedding", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=math.ceil(results / row_parts))


def ordered(device: Device, elements: int, n: float, rows: int, element: Element) -> Work:
    """Return the work of sorting rows, or finding their largest: a bitonic network of comparisons."""
    length = max(2, math.ceil(elements / max(1, rows)))
    steps = math.ceil(math.log2(length))
    rounds = steps * (steps + 1) // 2
    step = Cycles(compute=vertices.elementwise(device, n, element, ("compare", "maximum"), vertices.BINARY))
    one = step + exchange(device, n * (element.bytes + 4))
    temporary = n * (element.bytes + 4)
    return Work("ordering", one.times(rounds), temporary_bytes=temporary, outputs_on_busiest_tile=n)
