"""Watching processes from the loader's tests, without ever failing because a machine is slow."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poptorch._dataloader import AsynchronousDataAccessor
from poptorch.enums import SharingStrategy

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


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie, which nobody has asked about yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def loader_processes() -> list[Any]:
    return [child for child in multiprocessing.active_children() if child.name == "poptorch-loader"]
