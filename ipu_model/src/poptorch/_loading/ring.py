"""The ring: a fixed number of slots in shared memory, each with room for the tensors of one item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch._loading.rebatching import Chunk, rows_of
from poptorch._loading.shared_file import SharedFile, aligned


@dataclass(frozen=True)
class TensorPlace:
    """Where one tensor of an item sits in its slot; `offset` in bytes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


@dataclass(frozen=True)
class RingLayout:
    """The same division into tensors for each of `slots` slots of `slot_bytes` bytes."""

    places: tuple[TensorPlace, ...]
    slot_bytes: int
    slots: int

    @classmethod
    def for_items_like(cls, item: Chunk, slots: int, rows: int | None = None) -> RingLayout:
        """Lay out slots for items shaped like `item`, or with `rows` rows where given."""
        places: list[TensorPlace] = []
        end = 0
        for tensor in item:
            shape = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
            offset = aligned(end)
            places.append(TensorPlace(shape, tensor.dtype, offset))
            end = offset + torch.Size(shape).numel() * tensor.dtype.itemsize
        return cls(tuple(places), aligned(end), slots)

    @property
    def total_bytes(self) -> int:
        """Size of the whole ring."""
        return self.slot_bytes * self.slots


class Ring:
    """The slots as tensors on a shared file; the child writes them, the parent reads them."""

    def __init__(self, file: SharedFile, layout: RingLayout) -> None:
        memory = file.map()
        self._slots = [
            [_view(memory, place, slot * layout.slot_bytes) for place in layout.places]
            for slot in range(layout.slots)
        ]  # fmt: skip

    def fills_a_slot(self, item: Sequence[Chunk]) -> bool:
        """Return whether an item has exactly the shapes of the first one."""
        return len(item) == 1 and all(
            target.shape == source.shape for target, source in zip(self._slots[0], item[0], strict=True)
        )

    def write(self, slot: int, item: Sequence[Chunk]) -> None:
        """Copy an item that fills the slot; raise `ValueError` where its shapes are not the first item's."""
        (chunk,) = item
        for target, source in zip(self._slots[slot], chunk, strict=True):
            if target.shape != source.shape:
                raise ValueError(
                    f"Every item must have the shapes of the first one: expected {tuple(target.shape)}, "
                    f"got {tuple(source.shape)}. Pad samples, drop the last batch, or give a rebatched_size."
                )
            # Without detach() a sample that requires gradients would tie the slot to its history.
            target.copy_(source.detach())

    def write_rows(self, slot: int, item: Sequence[Chunk]) -> int:
        """Copy the chunks of an item one below the other and return how many rows they fill.

        Raises `ValueError` where they do not fit, or differ from the first item beyond dimension 0.
        """
        end = 0
        for chunk in item:
            start, end = end, end + rows_of(chunk)
            for target, source in zip(self._slots[slot], chunk, strict=True):
                if end > target.shape[0] or target.shape[1:] != source.shape[1:]:
                    raise ValueError(
                        f"A batch of shape {tuple(source.shape)} does not fit into rows {start} to {end - 1} "
                        f"of {tuple(target.shape)}; only dimension 0 may differ from the first item."
                    )
                target[start:end].copy_(source.detach())
        return end

    def read(self, slot: int, rows: int | None) -> list[Tensor]:
        """Return views of the slot's tensors, of their first `rows` rows where given."""
        return [tensor if rows is None else tensor[:rows] for tensor in self._slots[slot]]


def _view(memory: object, place: TensorPlace, start: int) -> Tensor:
    count = torch.Size(place.shape).numel()
    if count == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    offset = start + place.offset
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=offset).view(place.shape)
