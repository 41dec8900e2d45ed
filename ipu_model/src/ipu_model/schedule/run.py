"""From work and conditions to a schedule: the segments of all rounds, added up, shared out and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ipu_model.profiling.data import PhaseCycles
from ipu_model.schedule.plan import Round, Shape, rounds_of
from ipu_model.schedule.result import CycleTime, Schedule, StageTime
from ipu_model.schedule.segments import CyclesByKind, Segment, cycles_of, length
from ipu_model.schedule.timeline import Timeline
from ipu_model.schedule.timing import Conditions, Timing
from ipu_model.schedule.work import StageWork, Workload

SHARES = ("main", "fill and flush", "stream", "copy", "sync", "update", "collective", "offload", "run start")
"""The parts of the device time; work counts as "main" in cycles in which every stage does all its passes."""

_SHARE_OF_SEGMENT = {"stream": "stream", "copy": "copy", "sync": "sync", "start": "run start"}
_SHARE_OF_PIECE = {"collective": "collective", "offload": "offload", "update": "update"}


def run(
    workload: Workload, shape: Shape, conditions: Conditions, executions: Mapping[str, int] | None = None
) -> Schedule:
    """Return the schedule of one call; its cost does not depend on how many micro-batches and updates there are."""
    timing = Timing(workload, conditions)
    book = _Book(workload.ipus)
    timeline = Timeline(workload.ipus, conditions.clock_hz)
    start, update, returned = timing.start(), timing.update() if shape.training else (), timing.returned()
    timeline.once(start)
    book.add(start, 1)
    rounds = rounds_of(shape)
    main = CycleTime()
    for number, each in enumerate(rounds):
        intervals = [(interval, timing.interval(interval)) for interval in each.intervals]
        for interval, segments in intervals:
            book.add(segments, interval.count * each.repeats, work="main" if interval.is_full else "fill and flush")
            main = _cycle_time(segments) if interval.is_full else main
        book.add(update, each.repeats)
        left = each.repeats
        if number == 0:
            for interval, segments in intervals:
                timeline.interval(interval, segments)
            timeline.once(update)
            left -= 1
        if left:
            whole = [segment.times(interval.count) for interval, segments in intervals for segment in segments]
            timeline.repeated((*whole, *update), left, "update" if shape.training else "round")
    book.add(returned, conditions.returned)
    timeline.repeated(returned, conditions.returned, "result")
    return Schedule(
        cycles=book.cycles,
        device_cycles=book.device_cycles,
        timeline=timeline.spans,
        shares=book.shares(),
        stage_times=stage_times(workload),
        main_cycle=main,
        update_cycles=cycles_of(update),
        pipeline_cycles=_pipeline_cycles(rounds),
        limited_by=book.limited_by(workload),
        executions=dict(executions or {}),
    )


def stage_times(workload: Workload) -> tuple[StageTime, ...]:
    """Return the cycles of every stage for one micro-batch."""
    return tuple(
        StageTime(s.index, s.ipu, length(s.forward), length(s.recompute), length(s.backward)) for s in workload.stages
    )


def _pipeline_cycles(rounds: tuple[Round, ...]) -> int:
    return rounds[0].cycles


def _cycle_time(segments: Iterable[Segment]) -> CycleTime:
    by_kind = dict.fromkeys(("work", "stream", "copy", "sync"), 0.0)
    for segment in segments:
        by_kind[segment.kind] += segment.cycles
    return CycleTime(**by_kind)


@dataclass
class _Book:
    """Adds up segments: cycles of every IPU by kind, and the time of all by what it is spent on."""

    ipus: int
    device_cycles: float = 0.0
    _cycles: list[CyclesByKind] = field(init=False)
    _spent: dict[str, float] = field(init=False)
    _update: float = 0.0

    def __post_init__(self) -> None:
        self._cycles = [CyclesByKind() for _ in range(self.ipus)]
        self._spent = dict.fromkeys(SHARES, 0.0)

    @property
    def cycles(self) -> tuple[PhaseCycles, ...]:
        return tuple(own.cycles for own in self._cycles)

    def add(self, segments: Iterable[Segment], count: int, *, work: str = "main") -> None:
        """Add `count` repetitions of `segments`, whose passes count as `work`."""
        for segment in segments:
            self.device_cycles += segment.cycles * count
            for ipu, own in enumerate(self._cycles):
                own.add(segment, ipu, count)
            self._share(segment, count, work)

    def _share(self, segment: Segment, count: int, work: str) -> None:
        if segment.kind in _SHARE_OF_SEGMENT:
            self._spent[_SHARE_OF_SEGMENT[segment.kind]] += segment.cycles * count
            return
        if segment.kind == "update":
            self._update += segment.cycles * count
            work = "update"
        # What the slowest IPU does is what the time is spent on; where IPUs take turns, waits are the others' turns.
        for piece in self._decisive(segment):
            self._spent[_SHARE_OF_PIECE.get(piece[0], work)] += piece[1] * count

    def _decisive(self, segment: Segment) -> list[tuple[str, float]]:
        longest = segment.longest
        waited = sum(piece.length for piece in longest if piece.kind == "wait")
        found = [(piece.kind, piece.length) for piece in longest if piece.kind != "wait"]
        if not waited:
            return found
        others = [p for own in segment.pieces if own is not longest for p in own if p.kind != "wait"]
        return found + [(piece.kind, piece.length) for piece in others]

    def shares(self) -> dict[str, float]:
        """Return the parts of the device time, which sum to 1."""
        whole = sum(self._spent.values())
        return {name: spent / whole if whole else float(name == "main") for name, spent in self._spent.items()}

    def limited_by(self, workload: Workload) -> str:
        """Return what takes most of the time (see `Schedule.limited_by`)."""
        spent = self._spent
        passes = spent["main"] + spent["fill and flush"]
        outside = self._update - spent["update"]  # collectives and moves that belong to the update
        parts = {
            slowest_stage(workload): spent["main"]
            + max(0.0, spent["collective"] + spent["offload"] - outside) * (passes > 0),
            "pipeline fill and flush": spent["fill and flush"],
            "stream": spent["stream"],
            "inter-IPU copy": spent["copy"],
            "weight update": self._update,
        }
        return max(parts, key=parts.__getitem__)


def slowest_stage(workload: Workload) -> str:
    """Return the name of the stage with most work on the IPU with most work."""
    by_ipu: dict[int, float] = {}
    for stage in workload.stages:
        by_ipu[stage.ipu] = by_ipu.get(stage.ipu, 0.0) + _total(stage)
    busiest = max(by_ipu, key=by_ipu.__getitem__)
    return f"stage {max((s for s in workload.stages if s.ipu == busiest), key=_total).index}"


def _total(stage: StageWork) -> float:
    return length(stage.forward) + length(stage.recompute) + length(stage.backward)
