"""Gluing: batches of any size in, items of one size out, in order and without copying."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

Chunk = list[Tensor]
"""Tensors that share dimension 0: the same rows of every element of an item."""


def glue(chunks: Iterable[Chunk], rows: int, keep_remainder: bool) -> Iterator[list[Chunk]]:
    """Cut and join `chunks` into items of exactly `rows` rows.

    Each item is a list of views on consecutive rows of the chunks. What is left at the end makes a last,
    shorter item if `keep_remainder` is true and is dropped otherwise. Raises `ValueError` where the tensors
    of a chunk disagree about the number of rows.
    """
    held: list[Chunk] = []
    held_rows = 0
    for chunk in chunks:
        available = rows_of(chunk)
        start = 0
        while start < available:
            stop = min(available, start + rows - held_rows)
            held.append([tensor[start:stop] for tensor in chunk])
            held_rows += stop - start
            start = stop
            if held_rows == rows:
                yield held
                held, held_rows = [], 0
    if held and keep_remainder:
        yield held


def rows_of(chunk: Chunk) -> int:
    """Return the size of dimension 0, common to all tensors; raise `ValueError` if there is none."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in chunk}
    rows = sizes.pop() if len(sizes) == 1 else None
    if rows is None:
        raise ValueError(
            "Re-batching joins items along dimension 0, so all tensors of an item need the same size there; "
            f"got the shapes {[tuple(tensor.shape) for tensor in chunk]}."
        )
    return rows
