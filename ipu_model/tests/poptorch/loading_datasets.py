"""Data sets for the loader's tests, in a module that child processes can import."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from loading_processes import TIMEOUT_IN_S
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from poptorch._utils import ICustomArgParser


def row(index: int) -> Tensor:
    return torch.full((2,), float(index))


class Numbers(Dataset[Any]):
    """Sample `i` is `sample(i)`: unless told otherwise, a tensor of shape [2] filled with `i`.

    Like many, it raises no `IndexError`: only its length says where it ends.
    """

    def __init__(self, length: int, sample: Callable[[int], Any] = row) -> None:
        self.length, self.sample = length, sample

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def pair(index: int) -> Any:
    """Return something like an image, [3, 4, 4], and an int64 label."""
    return torch.full((3, 4, 4), float(index)), torch.tensor(index)


def keyed(index: int) -> Any:
    """Return a dict whose keys are not in alphabetical order."""
    return {"y": torch.tensor(index), "x": row(index)}


def with_string(index: int) -> Any:
    return row(index), str(index)


def nested(index: int) -> Any:
    return row(index), [row(index)]


def dying(index: int) -> Tensor:
    """End the process, without a word, for one index."""
    if index == 2:
        os._exit(7)
    return row(index)


def where_read(index: int) -> Any:
    """Tell which process reads, and with how many torch threads."""
    return torch.tensor(os.getpid()), torch.tensor(torch.get_num_threads())


def dice(index: int) -> Tensor:
    """Draw from the three common random generators, in the default dtype."""
    return torch.stack([
        torch.rand(()),
        torch.tensor(np.random.rand(), dtype=torch.get_default_dtype()),
        torch.tensor(random.random(), dtype=torch.get_default_dtype()),
    ])  # fmt: skip


def failing(bad: int, index: int) -> Tensor:
    if index == bad:
        raise ValueError(f"sample {index} is bad")
    return row(index)


def slow(seconds: float, index: int) -> Tensor:
    time.sleep(seconds)
    return row(index)


def changing(change: str, index: int) -> Any:
    """Item 1 differs from item 0 in the way asked for."""
    if index != 1:
        return {"x": torch.zeros(2, dtype=torch.float16)}
    return {
        "shape": {"x": torch.ones(3)},
        "broadcast": {"x": torch.ones(1)},
        "keys": {"z": torch.ones(2)},
        "structure": [torch.ones(2)],
        "dtype": {"x": torch.ones(2, dtype=torch.float64) / 3},
    }[change]


Pairs, Dicts, Nested, WithStrings = (partial(Numbers, sample=f) for f in (pair, keyed, nested, with_string))
Dies, Threads, Dice = (partial(Numbers, sample=f) for f in (dying, where_read, dice))


def Fails(length: int, bad: int) -> Numbers:
    return Numbers(length, partial(failing, bad))


def Slow(length: int, seconds: float) -> Numbers:
    return Numbers(length, partial(slow, seconds))


def Changing(change: str) -> Numbers:
    return Numbers(3, partial(changing, change))


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


class Passes:
    """An iterable of `length` items that counts in shared memory how often it was started."""

    def __init__(self, length: int, counter: Any) -> None:
        self.length = length
        self.counter = counter

    def __iter__(self) -> Iterator[Tensor]:
        with self.counter.get_lock():
            self.counter.value += 1
        return (torch.tensor(i) for i in range(self.length))


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
