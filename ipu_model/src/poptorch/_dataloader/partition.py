"""Dividing a map-style data set between the processes of a distributed run, in contiguous ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler


@dataclass(frozen=True)
class Share:
    """The share of one process: `length` consecutive indices from `start`.

    `leftover` is the number of indices that no process reads; every second shuffled pass starts `shift` indices later.
    """

    start: int
    length: int
    shift: int = 0


def share_of(samples: int, per_item: int, processes: int, process: int, drop_last: bool) -> Share:
    """Return the share of process `process` of `processes` in `samples` samples, `per_item` to an item.

    With `drop_last` every process gets the same whole number of items. Raises `ZeroDivisionError` if that is
    none.
    """
    if not drop_last:
        length, extra = divmod(samples, processes)
        return Share(process * length + min(process, extra), length + (process < extra))
    length = per_item * (samples // (per_item * processes))
    if length == 0:
        raise ZeroDivisionError(
            f"{samples} samples are too few for {processes} processes that load {per_item} samples per item: "
            f"with drop_last=True at least {per_item * processes} are needed."
        )
    return Share(process * length, length, samples % length)


class GlobalIndex(int):
    """An index into the whole data set rather than into one process's view of it."""


class PartitionView(Dataset[Any]):
    """One process's contiguous part of a map-style data set; indexed from 0, or anywhere by `GlobalIndex`."""

    def __init__(self, dataset: Any, share: Share) -> None:
        self._dataset = dataset
        self.share = share

    def __len__(self) -> int:
        """Return the number of samples of this process."""
        return self.share.length

    def __getitem__(self, index: int) -> Any:
        """Return a sample; raise `IndexError` outside this process's part."""
        if isinstance(index, GlobalIndex):
            return self._dataset[int(index)]
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is outside this process's {len(self)} samples.")
        return self._dataset[self.share.start + index % len(self)]


class ShuffledShare(Sampler[GlobalIndex]):
    """Draws a permutation of the whole data set for every pass and reads one process's share of it.

    All processes draw the same permutations because they use the same seed. If samples are left over, odd passes
    (including the first) start later, so that two passes together can reach every position.
    """

    def __init__(self, samples: int, share: Share, seed: int) -> None:
        self._samples = samples
        self._share = share
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._passes = 0

    def __len__(self) -> int:
        """Return the number of samples of a pass."""
        return self._share.length

    def __iter__(self) -> Iterator[GlobalIndex]:
        """Draw the next permutation and return this process's part of it."""
        self._passes += 1
        start = self._share.start + (self._share.shift if self._passes % 2 else 0)
        permutation = torch.randperm(self._samples, generator=self._generator)
        return map(GlobalIndex, permutation[start : start + self._share.length].tolist())
