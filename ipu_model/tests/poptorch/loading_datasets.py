"""Data sets for the loader's tests, in a module that child processes can import, and ways to watch those processes.

No test fails because a machine is slow.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

import poptorch
from poptorch._dataloader import AsynchronousDataAccessor
from poptorch.enums import SharingStrategy


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


def dying(index: int) -> Tensor:
    """End the process, without a word, for one index."""
    if index == 2:
        os._exit(7)
    return row(index)


def where_read(index: int) -> Any:
    return torch.tensor(os.getpid()), torch.tensor(torch.get_num_threads())


def dice(index: int) -> Tensor:
    """Draw from the three common random generators, in the default dtype."""
    drawn = np.random.rand(), random.random()
    return torch.stack([torch.rand(()), *(torch.tensor(x, dtype=torch.get_default_dtype()) for x in drawn)])


def failing(bad: int, index: int) -> Tensor:
    if index == bad:
        raise ValueError(f"sample {index} is bad")
    return row(index)


def slow(seconds: float, index: int) -> Tensor:
    time.sleep(seconds)
    return row(index)


Pairs, Dicts, Dies, Threads, Dice = (partial(Numbers, sample=f) for f in (pair, keyed, dying, where_read, dice))


def Fails(length: int, bad: int) -> Numbers:
    return Numbers(length, partial(failing, bad))


def Slow(length: int, seconds: float) -> Numbers:
    return Numbers(length, partial(slow, seconds))


class Stream(IterableDataset[Tensor]):
    """Counts to `length`, its samples divided as evenly as 50 = 13 + 13 + 13 + 11 between torch workers."""

    def __init__(self, length: int, divided: bool = True) -> None:
        self.length, self.divided = length, divided

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info() if self.divided else None
        per_worker = -(-self.length // info.num_workers) if info else self.length
        start = per_worker * info.id if info else 0
        return (torch.tensor(float(i)) for i in range(start, min(start + per_worker, self.length)))


class Lengths:
    """A batch sampler without `batch_size`: consecutive indices in batches of the given lengths."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for length in self.lengths:
            yield list(range(start, start + length))
            start += length


class FixedSize:
    """Like PyTorch Geometric's samplers: batches of samples with at most `most` nodes together, whose number depends on
    the order. Those refuse their length for a random order, with one class of error or another.
    """

    def __init__(self, nodes: list[int], most: int, error: type[Exception]) -> None:
        self.nodes, self.most, self.error, self.sampler = nodes, most, error, RandomSampler(nodes)

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            if sum(self.nodes[i] for i in (*batch, index)) > self.most:
                yield batch
                batch = []
            batch.append(index)
        yield batch

    def __len__(self) -> int:
        raise self.error("`self.sampler` is `RandomSampler`. In this case length is non deterministic.")


def pad(samples: list[Tensor]) -> Tensor:
    """Collate up to four samples to four rows."""
    return torch.nn.functional.pad(torch.stack(samples), (0, 0, 0, 4 - len(samples)))


def with_count(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.stack(samples), torch.tensor(len(samples))


class Sample:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class SampleParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Any) -> list[Any]:
        return [struct.x, struct.y]

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Sample:
        return Sample(next(tensor_iterator), next(tensor_iterator))


def collate_samples(pairs: list[Any]) -> Sample:
    return Sample(*map(torch.stack, zip(*pairs)))


def nothing(worker_id: int) -> None:
    """A worker_init_fn, which tells the loader that the data set divides itself."""


# Watching processes.

TIMEOUT_IN_S = 60


def access(dataset: Any, **arguments: Any) -> AsynchronousDataAccessor:
    """Make an accessor over a forked process, which starts in milliseconds; it ends when nobody refers to it."""
    return AsynchronousDataAccessor(dataset, **{"sharing_strategy": SharingStrategy.Fork, **arguments})


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as `condition()` is true; fail if it never is."""
    end = time.monotonic() + TIMEOUT_IN_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def stay_idle() -> None:
    time.sleep(0.2)


def counter() -> Any:
    return multiprocessing.get_context("fork").Value("i", 0)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie, which nobody has asked about yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def loader_processes() -> list[Any]:
    return [child for child in multiprocessing.active_children() if child.name == "poptorch-loader"]
