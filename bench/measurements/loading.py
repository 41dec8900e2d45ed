"""Async against Sync loading, where the loader and the consumer both have work to do."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import Dataset

import poptorch
from measurements.timing import Row, elapsed

ITEMS = 40
SECONDS_PER_ITEM = 0.02


class SlowImages(Dataset[Tensor]):
    """Images that each take a while to load, without using the processor."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(SECONDS_PER_ITEM)
        return torch.full((3, 32, 32), float(index))


def _epoch(loader: poptorch.DataLoader) -> None:
    for _ in loader:
        time.sleep(SECONDS_PER_ITEM)


def rows(rounds: int) -> list[Row]:
    """Measure an epoch in which a step takes as long as loading its item."""
    seconds = {}
    for mode in (poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async):
        loader = poptorch.DataLoader(poptorch.Options(), SlowImages(), mode=mode)
        seconds[mode] = elapsed(partial(_epoch, loader))
        loader.terminate()
    ratio = seconds[poptorch.DataLoaderMode.Async] / seconds[poptorch.DataLoaderMode.Sync]
    return [Row("epoch with equal loading and computing: Async / Sync (ideal 0.50)", f"{ratio:.2f}x")]
