"""A torch loader whose items may be several batches of a batch sampler, one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poptorch._args_parser import flatten

if TYPE_CHECKING:
    from poptorch._loading.accessor import AsynchronousDataAccessor


class ItemLoader(torch.utils.data.DataLoader[Any]):
    """What `poptorch.DataLoader` is, and what its process iterates over.

    `combinedBatchSize` is the number of rows of a full item (`None` without batching), `keeps_remainder` says
    whether a shorter one may come last, and `batches_per_item` is not `None` where items are made of a batch
    sampler's batches.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        combined_batch_size: int | None,
        keeps_remainder: bool,
        batches_per_item: int | None = None,
        **torch_arguments: Any,
    ) -> None:
        self.combinedBatchSize = combined_batch_size
        self.keeps_remainder = keeps_remainder
        self.batches_per_item = batches_per_item
        self._accessor: AsynchronousDataAccessor | None = None
        super().__init__(dataset, **torch_arguments)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises a class of its own
        """Return an iterator over items."""
        batches: Iterator[Any] = super().__iter__()
        if self.batches_per_item in (None, 1):
            return batches
        assert self.batches_per_item is not None
        return join_batches(batches, self.batches_per_item, self.keeps_remainder)


def join_batches(batches: Iterable[Any], batches_per_item: int, keep_incomplete: bool) -> Iterator[Any]:
    """Concatenate every `batches_per_item` consecutive batches, tensor by tensor, along dimension 0.

    An incomplete last group is delivered if `keep_incomplete` is true and dropped otherwise.
    """
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if len(group) == batches_per_item:
            yield _concatenated(group)
            group = []
    if group and keep_incomplete:
        yield _concatenated(group)


def _concatenated(group: list[Any]) -> Any:
    _, rebuild = flatten(group[0])
    leaves = [flatten(batch)[0] for batch in group]
    return rebuild([torch.cat(_tensors(parts)) for parts in zip(*leaves, strict=True)])


def _tensors(parts: tuple[Any, ...]) -> list[Tensor]:
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"An item of several batches of a batch_sampler is not a torch tensor throughout: got a "
                f"{type(part).__name__}, which cannot be concatenated. Return tensors from collate_fn."
            )
    return list(parts)
