"""Data sets for the loader's tests, in a module that child processes can import."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from loading_processes import TIMEOUT_IN_S
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from poptorch._utils import ICustomArgParser


class Numbers(Dataset[Tensor]):
    """Sample `i` is a tensor of shape [2] filled with `i`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index))


class Pairs(Numbers):
    """Sample `i` is a tuple: image-like [3, 4, 4] and an int64 label, both holding `i`."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4, 4), float(index)), torch.tensor(index)


class Dicts(Numbers):
    """Sample `i` is a dict whose keys are not in alphabetical order."""

    def __getitem__(self, index: int) -> Any:
        return {"y": torch.tensor(index), "x": torch.full((2,), float(index))}


class Stream(IterableDataset[Tensor]):
    """Counts to `length`, its samples divided as evenly as 50 = 13 + 13 + 13 + 11 between torch workers."""

    def __init__(self, length: int, divided: bool = True) -> None:
        self.length = length
        self.divided = divided

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info() if self.divided else None
        per_worker = -(-self.length // info.num_workers) if info else self.length
        start = per_worker * info.id if info else 0
        return (torch.tensor(float(i)) for i in range(start, min(start + per_worker, self.length)))


class MeasuredStream(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.length


class Fails(Numbers):
    """Raises for one index."""

    def __init__(self, length: int, bad: int) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index: int) -> Tensor:
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        return super().__getitem__(index)


class Dies(Numbers):
    """Ends its process, without a word, for one index."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            os._exit(7)
        return super().__getitem__(index)


class WithStrings(Numbers):
    """Has an element that is no tensor."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), str(index)


class Nested(Numbers):
    """Has a container within a container."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), [super().__getitem__(index)]


class Changing(Numbers):
    """Item 1 differs from item 0 in the way asked for."""

    def __init__(self, change: str) -> None:
        super().__init__(3)
        self.change = change

    def __getitem__(self, index: int) -> Any:
        if index != 1:
            return {"x": torch.zeros(2, dtype=torch.float16)}
        return {
            "shape": {"x": torch.ones(3)},
            "broadcast": {"x": torch.ones(1)},
            "keys": {"z": torch.ones(2)},
            "structure": [torch.ones(2)],
            "dtype": {"x": torch.ones(2, dtype=torch.float64) / 3},
        }[self.change]


class Slow(Numbers):
    """Takes its time for every sample."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Sleeps:
    """Delivers one item, sets a flag and sleeps; can be deaf to signals."""

    def __init__(self, asleep: Any, deaf_to: tuple[signal.Signals, ...] = ()) -> None:
        self.asleep = asleep
        self.deaf_to = deaf_to

    def __iter__(self) -> Iterator[Tensor]:
        for number in self.deaf_to:
            signal.signal(number, signal.SIG_IGN)
        yield torch.zeros(1)
        self.asleep.value = 1
        time.sleep(TIMEOUT_IN_S)


class Counted(Numbers):
    """Counts in shared memory how many samples were read."""

    def __init__(self, length: int, counter: Any) -> None:
        super().__init__(length)
        self.counter = counter

    def __getitem__(self, index: int) -> Tensor:
        with self.counter.get_lock():
            self.counter.value += 1
        return super().__getitem__(index)


class Threads(Numbers):
    """Tells which process reads it, and with how many torch threads."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(os.getpid()), torch.tensor(torch.get_num_threads())


class Dice(Numbers):
    """Draws from the three common random generators, in the default dtype."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.stack([
            torch.rand(()),
            torch.tensor(np.random.rand(), dtype=torch.get_default_dtype()),
            torch.tensor(random.random(), dtype=torch.get_default_dtype()),
        ])  # fmt: skip


class Passes:
    """An iterable of `length` items that counts in shared memory how often it was started."""

    def __init__(self, length: int, counter: Any) -> None:
        self.length = length
        self.counter = counter

    def __iter__(self) -> Iterator[Tensor]:
        with self.counter.get_lock():
            self.counter.value += 1
        return (torch.tensor(i) for i in range(self.length))


class Endless(Numbers):
    """A data set that, like many, raises no `IndexError`: only its length says where it ends."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


class Lengths:
    """A batch sampler without `batch_size`: consecutive indices in batches of the given lengths."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for length in self.lengths:
            yield list(range(start, start + length))
            start += length


class Once:
    """An iterable whose data can be read only once; counts how often that was tried."""

    def __init__(self, length: int, counter: Any) -> None:
        self.items = list(range(length))
        self.counter = counter

    def __iter__(self) -> Iterator[Tensor]:
        with self.counter.get_lock():
            self.counter.value += 1
        while self.items:
            yield torch.tensor(self.items.pop(0))


class Sample:
    """A custom type with two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x = x
        self.y = y


class SampleParser(ICustomArgParser):
    """Knows the tensors of a `Sample`."""

    def yieldTensors(self, struct: Sample) -> list[Tensor]:
        return [struct.x, struct.y]

    def reconstruct(self, original_structure: Sample, tensor_iterator: Iterator[Tensor]) -> Sample:
        return Sample(next(tensor_iterator), next(tensor_iterator))


def collate_samples(pairs: list[tuple[Tensor, Tensor]]) -> Sample:
    """Make one `Sample` of a batch of pairs."""
    return Sample(torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]))


def pad(samples: list[Tensor]) -> Tensor:
    """Collate up to four samples to four rows."""
    return torch.nn.functional.pad(torch.stack(samples), (0, 0, 0, 4 - len(samples)))


def with_count(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Collate samples and say how many there are."""
    return torch.stack(samples), torch.tensor(len(samples))


def nothing(worker_id: int) -> None:
    """A worker_init_fn, which tells the loader that the data set divides itself."""
