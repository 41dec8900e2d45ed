"""Data loading: `DataLoader`, `AsynchronousDataAccessor` and the background process behind them."""

from poptorch._dataloader.accessor import AsynchronousDataAccessor
from poptorch._dataloader.items import _SubDataset
from poptorch._dataloader.loader import DataLoader

__all__ = ["AsynchronousDataAccessor", "DataLoader", "_SubDataset"]
