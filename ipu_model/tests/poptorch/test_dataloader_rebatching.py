"""Gluing rows: re-batching cuts the concatenation of all chunks anew (data reference, 2.5 and 3.3)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poptorch._dataloader.items import glue, rows_of
from poptorch._utils import combined_batch_generator

chunk_sizes = st.lists(st.integers(0, 9), max_size=12)


def numbered_chunks(sizes: list[int]) -> list[list[torch.Tensor]]:
    """Chunks of two tensors each, whose rows are numbered through."""
    rows = torch.arange(sum(sizes))
    return [[part, part[:, None] * torch.tensor([10, 20])] for part in rows.split(sizes)]


@given(chunk_sizes, st.integers(1, 8), st.booleans())
def test_items_are_consecutive_rows_of_all_chunks(sizes: list[int], rows: int, keep: bool) -> None:
    items = list(glue(numbered_chunks(sizes), rows, keep))

    glued = [torch.cat([piece[0] for piece in item]).tolist() for item in items]
    everything = list(range(sum(sizes)))
    expected = [everything[start : start + rows] for start in range(0, len(everything), rows)]
    if expected and len(expected[-1]) < rows and not keep:
        expected.pop()
    assert glued == expected
    for item in items:
        second = torch.cat([piece[1] for piece in item])
        assert torch.equal(second[:, 1], 20 * torch.cat([piece[0] for piece in item]))


def test_gluing_copies_nothing() -> None:
    ((chunk,),) = [numbered_chunks([6])]
    first, second = glue([chunk], 3, False)
    assert first[0][0].data_ptr() == chunk[0].data_ptr()
    assert second[0][0].data_ptr() == chunk[0][3:].data_ptr()


@pytest.mark.parametrize("chunk", [[torch.zeros(2), torch.zeros(3)], [torch.tensor(1.0)]])
def test_tensors_without_common_rows_cannot_be_glued(chunk: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="dimension 0"):
        rows_of(chunk)


@given(st.integers(0, 10), st.integers(1, 4), st.booleans())
def test_groups_of_batches_are_concatenated_tensor_by_tensor(count: int, group: int, keep: bool) -> None:
    batches = [{"x": torch.full((2,), i), "y": torch.full((2, 1), -i)} for i in range(count)]
    items = list(combined_batch_generator(batches, group, drop_last=not keep))

    assert len(items) == count // group + (keep and count % group > 0)
    for number, item in enumerate(items):
        members = range(number * group, min((number + 1) * group, count))
        assert item["x"].tolist() == [i for i in members for _ in range(2)]
        assert item["y"].flatten().tolist() == [-i for i in members for _ in range(2)]
