"""Set PyTorch's number of threads during a replay, and restore the user's number afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Threads:
    """The number of threads of a replay; unless it is `fixed`, the user can lower it later with `set_num_threads`."""

    number: int
    fixed: bool = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let PyTorch compute with this number of threads; restore the previous number afterwards."""
        around = _SETTING.change(self)
        try:
            yield
        finally:
            _SETTING.restore(around)


class _Setting:
    """PyTorch's number of threads, which replays in several Python threads may change at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replays = 0
        self._users_number = 1
        self._own = threading.local()

    def change(self, threads: Threads) -> int | None:
        """Set the number; return that of the replay in this Python thread that calls this one, if there is any."""
        with self._lock:
            if self._replays == 0:
                # Only the first replay may read it: a later one would see the number that another replay has set.
                self._users_number = torch.get_num_threads()
            self._replays += 1
            number = threads.number if threads.fixed else min(threads.number, self._users_number)
            torch.set_num_threads(number)
            around: int | None = getattr(self._own, "number", None)
            self._own.number = number
            return around

    def restore(self, around: int | None) -> None:
        """Put back the number of the replay `around` this one, else the user's."""
        with self._lock:
            self._replays -= 1
            torch.set_num_threads(self._users_number if around is None else around)
            self._own.number = around


_SETTING = _Setting()
