"""Data loading: `DataLoader`, `AsynchronousDataAccessor` and the background process behind them."""

from __future__ import annotations

from poptorch._dataloader.accessor import AsynchronousDataAccessor
from poptorch._dataloader.loader import DataLoader
from poptorch._dataloader.partition import _SubDataset

__all__ = ["AsynchronousDataAccessor", "DataLoader", "_SubDataset"]
