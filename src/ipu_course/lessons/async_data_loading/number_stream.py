"""Numbers as a stream, divided between loader workers: what re-batching is for."""

from __future__ import annotations

from typing import Iterator

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info


class NumberStream(IterableDataset[Tensor]):
    """The numbers 0 to ``length`` - 1, each a tensor [1]; every loader worker streams its own part of them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor([number]) for number in range(first, self.length, step))


def divides_itself(worker: int) -> None:
    """A ``worker_init_fn`` without effect: it tells the loader that the data set itself shares out its numbers."""
