"""Data loading: `DataLoader`, `AsynchronousDataAccessor` and the background process behind them."""

from __future__ import annotations

from poptorch._loading.accessor import AsynchronousDataAccessor
from poptorch._loading.loader import DataLoader

__all__ = ["AsynchronousDataAccessor", "DataLoader"]
