"""How long each part of a cycle takes: transfers with the host, work, copies between IPUs, synchronisation.

The parts follow one another, and all IPUs wait for the slowest in each (bulk-synchronous execution). Every cycle has,
in this order (PopART, docs/notes/transforms/pipelining.md): inputs of the stages whose forward pass runs; the passes;
results to the host; copies between IPUs, which run in every cycle, whatever is active. All IPUs synchronise before each
part that occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ipu_model.predict.links import HostLink
from ipu_model.predict.passes import Beat, Interval, Round
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.segments import Piece, Segment, cycles_of, length, segment, waiting
from ipu_model.predict.work import StageWork, Workload


@dataclass(frozen=True)
class Conditions:
    """The machine and settings that, with the workload, determine its times.

    If `returns_all` is true, the results of every micro-batch go to the host; otherwise `returned` of them do in a
    call. `sync_cycles` is the time in which all IPUs synchronise.
    """

    host: HostLink
    copy_bytes_per_second: float
    sync_cycles: float
    clock_hz: float
    returns_all: bool = False
    returned: int = 1
    sends_inputs: bool = True
    sends_outputs: bool = True
    prefetch_depth: int = 1
    overlaps_input: bool = False
    overlaps_output: bool = False


@dataclass(frozen=True)
class Timing:
    """The segments of a workload under some conditions."""

    workload: Workload
    conditions: Conditions

    def interval(self, interval: Interval) -> tuple[Segment, ...]:
        """Return the segments of one cycle of an interval."""
        begin_share = self._begin_share(interval)
        exposed = self._exposed(interval, begin_share) if interval.overlapped else 1.0
        found: list[Segment] = []
        for beat in interval.beats:
            into, out = self._inputs(beat, begin_share), self._outputs(beat)
            if into is not None and self.conditions.overlaps_input:
                into = into.times(exposed)
            if out is not None and self.conditions.overlaps_output:
                out = out.times(exposed)
            found += self._synchronised(into, self._work(beat), out, self._copies(beat))
        return tuple(found)

    def update(self) -> tuple[Segment, ...]:
        """Return the segment of one weight update: IPUs run in parallel, or in turn if replicas exchange data."""
        workload = self.workload
        pieces: dict[int, list[Piece]] = {}
        passed = 0.0
        for ipu, work in sorted(workload.updates.items()):
            parts = ("collective", work.collective), ("offload", work.offload), ("update", work.optimiser)
            own = [Piece(kind, cycles) for kind, cycles in parts if length(cycles) > 0]
            if workload.updates_in_turn:
                pieces[ipu] = [Piece("wait", PhaseCycles(external_sync=passed)), *own] if passed else own
                passed += sum(piece.length for piece in own)
            else:
                pieces[ipu] = own
        found = segment("update", pieces, workload.ipus)
        return (found,) if found.cycles else ()

    def returned(self) -> tuple[Segment, ...]:
        """Return the segments that send the results of one micro-batch to the host, one for each stage."""
        if self.conditions.returns_all or not self.conditions.sends_outputs:
            return ()
        sent = (self._transfer({stage.ipu: stage.outputs}, to_device=False) for stage in self.workload.stages)
        return tuple(each for segment in sent if segment is not None for each in self._synchronised(segment))

    def start(self) -> tuple[Segment, ...]:
        """Return the segment in which the device waits for the host at the start of a run."""
        cycles = self.conditions.host.run_wait_cycles
        waits = (Piece("wait", PhaseCycles(stream_copy_begin=cycles)),)
        return (Segment("start", cycles, (waits,) * self.workload.ipus),) if cycles else ()

    # ------------------------------------------------------------------------------- parts of a cycle

    def _synchronised(self, *parts: Segment | None) -> list[Segment]:
        """Return the parts that occur, with a synchronisation before each one except the IPUs' own work."""
        found: list[Segment] = []
        for part in parts:
            if part is None or not part.cycles:
                continue
            if part.kind != "work" and self.conditions.sync_cycles:
                found.append(waiting("sync", self.conditions.sync_cycles, self.workload.ipus))
            found.append(part)
        return found

    def _work(self, beat: Beat) -> Segment:
        """Return the passes of all active stages; those of stages on one IPU follow one another."""
        pieces: dict[int, list[Piece]] = {}
        stages = self.workload.stages
        for index, lag in beat.forward.items():
            pieces.setdefault(stages[index].ipu, []).extend(_pass("forward", stages[index], lag))
        for index, lag in beat.backward.items():
            own = pieces.setdefault(stages[index].ipu, [])
            own += _pass("recompute", stages[index], lag)
            own += _pass("backward", stages[index], lag)
        return segment("work", pieces, self.workload.ipus)

    def _copies(self, beat: Beat) -> Segment | None:
        """Return the copies between IPUs at the end of a beat: all at once, both directions of a link as well."""
        stages = self.workload.stages
        by_pair: dict[tuple[int, int], float] = {}
        for index, size, step in (
            *((k, stages[k].on, 1) for k in beat.sends_on),
            *((k, stages[k].back, -1) for k in beat.sends_back),
        ):
            pair = stages[index].ipu, stages[index + step].ipu
            by_pair[pair] = by_pair.get(pair, 0.0) + size
        busiest: dict[int, float] = {}
        for pair, size in by_pair.items():
            for ipu in pair:
                busiest[ipu] = max(busiest.get(ipu, 0.0), size)
        rate = self.conditions.copy_bytes_per_second / self.conditions.clock_hz
        pieces = {
            ipu: [Piece("copy", PhaseCycles(global_exchange=size / rate))] for ipu, size in busiest.items() if size > 0
        }
        return segment("copy", pieces, self.workload.ipus) if pieces else None

    # ------------------------------------------------------------------------------- host transfers

    def _inputs(self, beat: Beat, begin_share: float) -> Segment | None:
        if not self.conditions.sends_inputs:
            return None
        return self._transfer(self._input_bytes(beat), to_device=True, begin_share=begin_share)

    def _outputs(self, beat: Beat) -> Segment | None:
        if not (self.conditions.returns_all and self.conditions.sends_outputs):
            return None
        return self._transfer(self._by_ipu(beat, lambda stage: stage.outputs), to_device=False)

    def _transfer(self, size: Mapping[int, float], *, to_device: bool, begin_share: float = 1.0) -> Segment | None:
        return self.conditions.host.transfer(size, self.workload.ipus, to_device=to_device, begin_share=begin_share)

    def _input_bytes(self, beat: Beat) -> dict[int, float]:
        return self._by_ipu(beat, lambda stage: stage.inputs)

    def _by_ipu(self, beat: Beat, bytes_of: Callable[[StageWork], float]) -> dict[int, float]:
        found: dict[int, float] = {}
        for index in beat.forward:
            stage = self.workload.stages[index]
            found[stage.ipu] = found.get(stage.ipu, 0.0) + bytes_of(stage)
        return found

    def _begin_share(self, interval: Interval) -> float:
        """Return how long this interval's begin phases are, as a multiple of one replica's refill.

        `_exposed` handles the work that hides overlapped inputs; here only the overlapped transfers count.
        """
        conditions = self.conditions
        if not conditions.sends_inputs:
            return 1.0
        hides_inputs = interval.overlapped and conditions.overlaps_input
        host, refill, meanwhile = conditions.host, 0.0, 0.0
        for beat in interval.beats:
            into, out = self._inputs(beat, 0.0), self._outputs(beat)
            if hides_inputs:
                parts = self._synchronised(into, out if conditions.overlaps_output else None)
            else:
                parts = self._synchronised(into, self._work(beat), out, self._copies(beat))
            meanwhile += cycles_of(parts)
            refill += host.refill_cycles(self._input_bytes(beat))
        return host.begin_share(refill, meanwhile, conditions.prefetch_depth)

    def _exposed(self, interval: Interval, begin_share: float) -> float:
        """Return the fraction of overlapped transfers that the work does not hide."""
        beside, transfers = 0.0, 0.0
        for beat in interval.beats:
            beside += cycles_of(self._synchronised(self._work(beat), self._copies(beat)))
            for moved, overlaps in (
                (self._inputs(beat, begin_share), self.conditions.overlaps_input),
                (self._outputs(beat), self.conditions.overlaps_output),
            ):
                cycles = cycles_of(self._synchronised(moved))
                beside += 0.0 if overlaps else cycles
                transfers += cycles if overlaps else 0.0
        return max(0.0, transfers - beside) / transfers if transfers else 0.0


def _pass(kind: str, stage: StageWork, lag: int) -> list[Piece]:
    """Return one pass of a stage: its collectives and fetches, then its work."""
    cycles: PhaseCycles = getattr(stage, kind)
    work = PhaseCycles(cycles.on_tile_execute, cycles.do_exchange, internal_sync=cycles.internal_sync)
    parts = (
        ("collective", PhaseCycles(global_exchange=cycles.global_exchange)),
        ("offload", PhaseCycles(stream_copy_begin=cycles.stream_copy_begin, stream_copy_mid=cycles.stream_copy_mid)),
        (kind, work),
    )
    return [Piece(name, part, stage.index, lag) for name, part in parts if length(part) > 0]


@dataclass(frozen=True)
class CycleTime:
    """Cycles of one pipeline cycle in which every stage works; its parts follow one another.

    `work` is that of the IPU with most of it. Without a pipeline it is the time of one micro-batch.
    """

    work: float = 0.0
    stream: float = 0.0
    copy: float = 0.0
    sync: float = 0.0

    @property
    def total(self) -> float:
        """All cycles together."""
        return self.work + self.stream + self.copy + self.sync


@dataclass(frozen=True)
class TimedInterval:
    """A number of identical cycles, and the segments of one of them."""

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
        for part in max(full, key=lambda each: each.interval.count).segments:
            by_kind[part.kind] += part.cycles
        return CycleTime(**by_kind)

    def _intervals(self) -> Iterator[TimedInterval]:
        for each in sorted(self.rounds, key=lambda found: -found.repeats):
            yield from each.intervals


def call_of(rounds: Iterable[Round], timing: Timing, *, training: bool) -> Call:
    """Return the segments of a call; their number does not grow with the number of micro-batches or updates."""
    timed = tuple(
        TimedRound(tuple(TimedInterval(each, timing.interval(each)) for each in found.intervals), found.repeats)
        for found in rounds
    )
    update = timing.update() if training else ()
    return Call(
        timing.workload.ipus, timing.start(), timed, update, timing.returned(), timing.conditions.returned
    )  # fmt: skip
