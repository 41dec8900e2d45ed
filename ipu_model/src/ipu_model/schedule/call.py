"""One call as segments: the start of the run, rounds of micro-batches with their updates, results now and then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.schedule.plan import Interval, Shape, rounds_of
from ipu_model.schedule.result import CycleTime
from ipu_model.schedule.segments import Segment
from ipu_model.schedule.timing import Timing


@dataclass(frozen=True)
class TimedInterval:
    """Cycles in which the same happens, and the segments of one of them."""

    interval: Interval
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class TimedRound:
    """`repeats` rounds of these intervals, each followed by an update."""

    intervals: tuple[TimedInterval, ...]
    repeats: int

    @property
    def cycles(self) -> int:
        """The pipeline cycles of one repetition."""
        return sum(each.interval.count for each in self.intervals)


@dataclass(frozen=True)
class Call:
    """Everything that happens in one call; `returned` happens `results` times."""

    ipus: int
    start: tuple[Segment, ...]
    rounds: tuple[TimedRound, ...]
    update: tuple[Segment, ...]
    returned: tuple[Segment, ...]
    results: int

    @property
    def main_cycle(self) -> CycleTime:
        """The time of the most frequent cycle in which every stage does all its passes; zeros if there is none."""
        full = [each for each in self._intervals() if each.interval.is_full]
        if not full:
            return CycleTime()
        by_kind = dict.fromkeys(("work", "stream", "copy", "sync"), 0.0)
        for segment in max(full, key=lambda each: each.interval.count).segments:
            by_kind[segment.kind] += segment.cycles
        return CycleTime(**by_kind)

    def _intervals(self) -> Iterator[TimedInterval]:
        for each in sorted(self.rounds, key=lambda found: -found.repeats):
            yield from each.intervals


def call_of(shape: Shape, timing: Timing) -> Call:
    """Return the segments of a call; how many there are does not depend on the counts of micro-batches and updates."""
    rounds = tuple(
        TimedRound(tuple(TimedInterval(each, timing.interval(each)) for each in found.intervals), found.repeats)
        for found in rounds_of(shape)
    )
    update = timing.update() if shape.training else ()
    return Call(
        timing.workload.ipus, timing.start(), rounds, update, timing.returned(), timing.conditions.returned
    )  # fmt: skip
