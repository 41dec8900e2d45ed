"""When a loader loads and when the calls run: an order of events, computed from given times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

PREFETCHED_BY_A_WORKER = 2  # torch's default prefetch_factor


@dataclass(frozen=True)
class Loading:
    """How calls get their data.

    An ``asynchronous`` loader is a process that keeps up to ``buffer`` calls' data, the one in use included.
    ``workers`` are torch's worker processes, each of which loads whole batches; with 0 of them, the loader's
    process or, without one, the program loads. Raises ``ValueError`` for counts that cannot be.
    """

    asynchronous: bool
    workers: int = 0
    buffer: int = 3

    def __post_init__(self) -> None:
        if self.workers < 0 or self.buffer < 1:
            raise ValueError(f"there are no {self.workers} workers, or no buffer of {self.buffer}")

    @property
    def ahead(self) -> int:
        """How many calls' data exist or are being loaded at the same time, the one in use included."""
        slots = self.buffer if self.asynchronous else 1
        return slots + PREFETCHED_BY_A_WORKER * self.workers

    @property
    def runs_ahead(self) -> bool:
        """Whether loading goes on while a call runs."""
        return self.ahead > 1


@dataclass(frozen=True)
class Event:
    """Data of one call being loaded, or the call itself: ``row`` is the loader's number, or ``None`` for a call."""

    number: int
    row: int | None
    start: float
    end: float


@dataclass(frozen=True)
class LoadingTimeline:
    """Loads and calls in their order, in seconds."""

    loads: tuple[Event, ...]
    calls: tuple[Event, ...]

    @property
    def seconds_per_call(self) -> float:
        """Mean time between the ends of two calls, over the second half: the beginning is not steady yet."""
        half = (len(self.calls) - 1) // 2
        steady = self.calls[half:]
        return (steady[-1].end - steady[0].end) / max(1, len(steady) - 1)


def timeline(load_seconds: Sequence[float], call_seconds: float, loading: Loading) -> LoadingTimeline:
    """Loads of ``load_seconds`` each, and for each a call of ``call_seconds``.

    A load begins when its loader is free and one of the ``loading.ahead`` places is; a call when the one
    before has ended and its data are there. Raises ``ValueError`` when there is nothing to load.
    """
    if not load_seconds:
        raise ValueError("a timeline needs at least one load")
    loaders = max(1, loading.workers)
    free = [0.0] * loaders
    loads: list[Event] = []
    calls: list[Event] = []
    for number, seconds in enumerate(load_seconds):
        row = number % loaders
        place = calls[number - loading.ahead].end if number >= loading.ahead else 0.0
        start = max(free[row], place)
        free[row] = start + seconds
        loads.append(Event(number, row, start, free[row]))
        begin = max(calls[-1].end if calls else 0.0, free[row])
        calls.append(Event(number, None, begin, begin + call_seconds))
    return LoadingTimeline(tuple(loads), tuple(calls))


def mean_seconds(load_seconds: Sequence[float], call_seconds: float, loading: Loading, calls: int) -> float:
    """Return the mean time between the ends of two of the first ``calls`` calls; the loads repeat ``load_seconds``.

    A measurement of as many calls compares with this. Raises ``ValueError`` for less than two calls.
    """
    if calls < 2:
        raise ValueError(f"{calls} calls have no time between them")
    loads = [load_seconds[number % len(load_seconds)] for number in range(calls)]
    ends = [call.end for call in timeline(loads, call_seconds, loading).calls]
    return (ends[-1] - ends[0]) / (calls - 1)


def bound(load_seconds: float, call_seconds: float, loading: Loading) -> float:
    """Seconds a call in closed form, for even loads: their sum, or the slower of the two when loading runs ahead."""
    if not loading.runs_ahead:
        return load_seconds + call_seconds
    return max(load_seconds / max(1, loading.workers), call_seconds)
