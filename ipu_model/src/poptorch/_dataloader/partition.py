"""Dividing a map-style data set between the processes of a distributed run, in contiguous ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from ipu_model.errors import require
from poptorch.options import Options


@dataclass(frozen=True)
class Share:
    """The share of one process: `length` consecutive indices from `start`.

    Every second shuffled pass starts `shift` indices later, so that it reads some of the indices left over otherwise.
    """

    start: int
    length: int
    shift: int = 0


def share_of(samples: int, per_item: int, processes: int, process: int, drop_last: bool) -> Share:
    """Return the share of process `process` of `processes` in `samples` samples, `per_item` to an item.

    With `drop_last` every process gets the same whole number of items. Raises `ZeroDivisionError` if that is none.
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


class _SubDataset(Dataset[Any]):
    """The part of a map-style data set that one process of a distributed run reads, `step` samples to an item.

    Indexed from 0: consecutive samples, or those of the last permutation; anywhere by `GlobalIndex`. The name is
    PopTorch's.

    Raises `ZeroDivisionError` if `drop_last` leaves this process no item.
    """

    def __init__(self, dataset: Any, opts: Options, step: int, drop_last: bool) -> None:
        where = opts.Distributed
        self.share = share_of(len(dataset), step, where.numProcesses, where.processId, drop_last)
        self._dataset = dataset
        self._start = self.share.start
        self._permutation: torch.Tensor | None = None
        self._generator: torch.Generator | None = None
        if opts.exists("random_seed"):
            self._generator = torch.Generator().manual_seed(opts.random_seed)

    def check_common_seed(self) -> None:
        """Raise `AssertionError` if a shuffled data set would be in another order in each process."""
        require(
            self._generator is not None,
            "Shuffling a dataset divided between processes needs the same seed in all of them: call "
            "options.randomSeed(seed) first.",
        )

    def shuffle_global_indices(self) -> None:
        """Draw a permutation of the whole data set, the same in every process of the same seed."""
        self.check_common_seed()
        self._permutation = torch.randperm(len(self._dataset), generator=self._generator)

    def swap_range(self) -> None:
        """Start later by the samples that no process reads, or again where it began."""
        begin = self.share.start
        self._start = begin + self.share.shift if self._start == begin else begin

    def __len__(self) -> int:
        return self.share.length

    def __getitem__(self, index: int) -> Any:
        """Return a sample; raise `IndexError` outside this process's part."""
        if isinstance(index, GlobalIndex):
            return self._dataset[int(index)]
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is outside this process's {len(self)} samples.")
        at = self._start + index % len(self)
        return self._dataset[at if self._permutation is None else int(self._permutation[at])]

    def positions(self) -> list[GlobalIndex]:
        positions = range(len(self._dataset)) if self._permutation is None else self._permutation.tolist()
        return list(map(GlobalIndex, positions[self._start : self._start + len(self)]))


class ShuffledPart(Sampler[GlobalIndex]):
    """Draws a permutation of the whole data set for every pass and reads one process's part of it.

    If samples are left over, odd passes (including the first) start later, so that two passes together can reach every
    position. The permutation goes to torch's workers with each index: they keep their own copies of the data set.
    """

    def __init__(self, part: _SubDataset) -> None:
        self._part = part

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[GlobalIndex]:
        self._part.swap_range()
        self._part.shuffle_global_indices()
        return iter(self._part.positions())
