"""The wall time of calls with their loading, within a time limit; the loader is terminated whatever happens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import poptorch

LIMIT_SECONDS = 20.0


def milliseconds_per_call(
    loader: poptorch.DataLoader, call: Callable[..., Any], limit_seconds: float = LIMIT_SECONDS
) -> float:
    """Load and ``call(*batch)`` for one pass over ``loader``, and terminate it. Milliseconds from call to call.

    The first call, which compiles, is not counted. The pass ends early after ``limit_seconds``, and with an
    interrupt; the loader's process ends in every case. Raises ``ValueError`` for less than two calls.
    """
    ends: list[float] = []
    limit = time.monotonic() + limit_seconds
    try:
        for batch in loader:
            call(*batch)
            ends.append(time.perf_counter())
            if time.monotonic() > limit:
                break
    finally:
        loader.terminate()
    if len(ends) < 2:
        raise ValueError(f"{len(ends)} calls are too few to measure: take more images or a longer limit")
    return 1000 * (ends[-1] - ends[0]) / (len(ends) - 1)
