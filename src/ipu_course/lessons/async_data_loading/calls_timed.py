"""The wall time of calls with their loading, within a time limit; the loader is terminated whatever happens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import poptorch

LIMIT_SECONDS = 20.0


@dataclass(frozen=True)
class TimedCalls:
    """Milliseconds from call to call, over ``calls`` calls, and the share of the time in which they had a core.

    The share counts this process alone. While calls follow each other without waiting, a share clearly below 1 means
    that other programs took the core.
    """

    milliseconds: float
    calls: int
    core_share: float


def time_calls(
    loader: poptorch.DataLoader, call: Callable[..., Any], limit_seconds: float = LIMIT_SECONDS
) -> TimedCalls:
    """Load and ``call(*batch)`` for one pass over ``loader``, and terminate it.

    The time starts at the end of the first call, which may compile. The pass ends early after ``limit_seconds``, and
    with an interrupt; the loader's process ends in every case. Raises ``ValueError`` for less than two calls.
    """
    ends: list[float] = []
    processor: list[float] = []
    limit = time.monotonic() + limit_seconds
    try:
        for batch in loader:
            call(*batch)
            ends.append(time.perf_counter())
            processor.append(time.process_time())
            if time.monotonic() > limit:
                break
    finally:
        loader.terminate()
    if len(ends) < 2:
        raise ValueError(f"{len(ends)} calls are too few to measure: take more images or a longer limit")
    seconds = ends[-1] - ends[0]
    return TimedCalls(1000 * seconds / (len(ends) - 1), len(ends), (processor[-1] - processor[0]) / seconds)
