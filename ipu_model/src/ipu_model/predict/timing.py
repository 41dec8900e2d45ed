"""How long each part of a cycle takes: transfers with the host, work, copies between IPUs, synchronisation.

The parts follow one another, and all IPUs wait for the slowest in each (bulk-synchronous execution). Every cycle has,
in this order (PopART, docs/notes/transforms/pipelining.md): inputs of the stages whose forward pass runs; the passes;
results to the host; copies between IPUs, which run in every cycle, whatever is active. All IPUs synchronise before each
part that occurs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from ipu_model.predict.links import HostLink
from ipu_model.predict.order import Beat, Interval, Round
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.work import StageWork, Workload

values_of: Callable[[PhaseCycles], tuple[float, ...]] = attrgetter(*(field.name for field in fields(PhaseCycles)))
_INPUTS: Callable[[StageWork], float] = attrgetter("inputs")
_OUTPUTS: Callable[[StageWork], float] = attrgetter("outputs")


class Piece(NamedTuple):
    """One activity of one IPU: `kind` is a kind of span; in cycle c it works on micro-batch c - `lag`."""

    kind: str
    cycles: PhaseCycles
    stage: int | None = None
    lag: int | None = None

    @property
    def length(self) -> float:
        """All cycles of the piece (`PhaseCycles.total`, which sweeps would call millions of times)."""
        return sum(values_of(self.cycles))

    def times(self, count: float) -> Piece:
        return self._replace(cycles=PhaseCycles(*(value * count for value in values_of(self.cycles))))


@dataclass(frozen=True)
class Segment:
    """A stretch of time that starts and ends together on all IPUs; each runs `pieces[ipu]`, then waits for the others.

    `kind` is one of "work", "stream", "copy", "sync", "update", "start".
    """

    kind: str
    cycles: float
    pieces: tuple[tuple[Piece, ...], ...]

    @staticmethod
    def of(kind: str, pieces: Mapping[int, Sequence[Piece]], ipus: int) -> Segment:
        by_ipu = tuple(tuple(pieces.get(ipu, ())) for ipu in range(ipus))
        return Segment(kind, max(map(_length, by_ipu), default=0.0), by_ipu)

    def times(self, count: float) -> Segment:
        pieces = tuple(tuple(piece.times(count) for piece in by_ipu) for by_ipu in self.pieces)
        return Segment(self.kind, self.cycles * count, pieces)

    @property
    def decisive(self) -> tuple[Piece, ...]:
        """The pieces that determine the segment's time: those of the slowest IPU, or of all if they take turns."""
        longest = max(self.pieces, key=_length, default=())
        if any(piece.kind == "wait" for piece in longest):
            return tuple(piece for own in self.pieces for piece in own if piece.kind != "wait")
        return longest

    def waits(self, ipu: int) -> float:
        return max(0.0, self.cycles - _length(self.pieces[ipu]))


def _length(pieces: Iterable[Piece]) -> float:
    return sum(piece.length for piece in pieces)


def _cycles_of(segments: Iterable[Segment]) -> float:
    return sum(segment.cycles for segment in segments)


@dataclass(frozen=True)
class Conditions:
    """The machine and settings that, with the workload, determine its times.

    If `returns_all`, the results of every micro-batch go to the host; otherwise `returned` of them do in a call.
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


class Call:
    """Everything that happens in one call; the number of segments does not grow with micro-batches or updates.

    Each of `rounds` is repeated as often as its first entry says, followed by an update every time; it has the segments
    of one cycle of each interval. `returned` sends the results of one micro-batch to the host, `results` times.
    """

    def __init__(self, workload: Workload, rounds: Iterable[Round], conditions: Conditions, *, training: bool) -> None:
        self.workload, self.conditions = workload, conditions
        wait = conditions.host.run_wait_cycles
        waits = (Piece("wait", PhaseCycles(stream_copy_begin=wait)),)
        self.start = (Segment("start", wait, (waits,) * workload.ipus),) if wait else ()
        self.rounds = [
            (a_round.repeats, [(interval, self._interval(interval)) for interval in a_round.intervals])
            for a_round in rounds
        ]
        self.update = self._update() if training else ()
        self.returned, self.results = self._returned(), conditions.returned

    def _interval(self, interval: Interval) -> tuple[Segment, ...]:
        begin_share = self._begin_share(interval)
        exposed = self._exposed(interval, begin_share) if interval.overlapped else 1.0
        segments: list[Segment] = []
        for beat in interval.beats:
            into, out = self._inputs(beat, begin_share), self._outputs(beat)
            if into is not None and self.conditions.overlaps_input:
                into = into.times(exposed)
            if out is not None and self.conditions.overlaps_output:
                out = out.times(exposed)
            segments += self._synchronised(into, self._work(beat), out, self._copies(beat))
        return tuple(segments)

    def _update(self) -> tuple[Segment, ...]:
        """Return the segment of one weight update: IPUs run in parallel, or in turn if replicas exchange data."""
        pieces: dict[int, list[Piece]] = {}
        passed = 0.0
        for ipu, work in sorted(self.workload.updates.items()):
            pieces[ipu] = _pieces("update", work)
            if self.workload.updates_in_turn:
                before = [Piece("wait", PhaseCycles(external_sync=passed))] if passed else []
                passed += _length(pieces[ipu])
                pieces[ipu] = before + pieces[ipu]
        segment = Segment.of("update", pieces, self.workload.ipus)
        return (segment,) if segment.cycles else ()

    def _returned(self) -> tuple[Segment, ...]:
        if self.conditions.returns_all or not self.conditions.sends_outputs:
            return ()
        sent = (self._transfer("stream out", {stage.ipu: stage.outputs}) for stage in self.workload.stages)
        return tuple(part for segment in sent if segment is not None for part in self._synchronised(segment))

    # ------------------------------------------------------------------------------- parts of a cycle

    def _synchronised(self, *parts: Segment | None) -> list[Segment]:
        """Return the parts that occur, with a synchronisation before each one except the IPUs' own work."""
        segments: list[Segment] = []
        for part in parts:
            if part is None or not part.cycles:
                continue
            if part.kind != "work" and self.conditions.sync_cycles:
                segments.append(Segment("sync", self.conditions.sync_cycles, ((),) * self.workload.ipus))
            segments.append(part)
        return segments

    def _work(self, beat: Beat) -> Segment:
        pieces: dict[int, list[Piece]] = defaultdict(list)
        stages = self.workload.stages
        for index, lag in beat.forward.items():
            pieces[stages[index].ipu] += _pieces("forward", stages[index].forward, index, lag)
        for index, lag in beat.backward.items():
            pieces[stages[index].ipu] += _pieces("recompute", stages[index].recompute, index, lag)
            pieces[stages[index].ipu] += _pieces("backward", stages[index].backward, index, lag)
        return Segment.of("work", pieces, self.workload.ipus)

    def _copies(self, beat: Beat) -> Segment | None:
        """Return the copies between IPUs at the end of a beat: all at once, both directions of a link as well."""
        stages = self.workload.stages
        by_pair: dict[tuple[int, int], float] = defaultdict(float)
        for k in beat.sends_on:
            by_pair[stages[k].ipu, stages[k + 1].ipu] += stages[k].on
        for k in beat.sends_back:
            by_pair[stages[k].ipu, stages[k - 1].ipu] += stages[k].back
        busiest: dict[int, float] = {}
        for pair, size in by_pair.items():
            for ipu in pair:
                busiest[ipu] = max(busiest.get(ipu, 0.0), size)
        rate = self.conditions.copy_bytes_per_second / self.conditions.clock_hz
        pieces = {
            ipu: [Piece("copy", PhaseCycles(global_exchange=size / rate))] for ipu, size in busiest.items() if size > 0
        }
        return Segment.of("copy", pieces, self.workload.ipus) if pieces else None

    # ------------------------------------------------------------------------------- host transfers

    def _inputs(self, beat: Beat, begin_share: float) -> Segment | None:
        sizes = self._by_ipu(beat, _INPUTS) if self.conditions.sends_inputs else {}
        return self._transfer("stream in", sizes, begin_share)

    def _outputs(self, beat: Beat) -> Segment | None:
        sent = self.conditions.returns_all and self.conditions.sends_outputs
        return self._transfer("stream out", self._by_ipu(beat, _OUTPUTS) if sent else {})

    def _transfer(self, kind: str, size: Mapping[int, float], begin_share: float = 1.0) -> Segment | None:
        moving = self.conditions.host.transfer(size, to_device=kind == "stream in", begin_share=begin_share)
        pieces = {ipu: [Piece(kind, cycles)] for ipu, cycles in moving.items()}
        return Segment.of("stream", pieces, self.workload.ipus) if pieces else None

    def _by_ipu(self, beat: Beat, bytes_of: Callable[[StageWork], float]) -> dict[int, float]:
        sizes: dict[int, float] = defaultdict(float)
        for index in beat.forward:
            sizes[self.workload.stages[index].ipu] += bytes_of(self.workload.stages[index])
        return sizes

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
            meanwhile += _cycles_of(parts)
            refill += host.refill_cycles(self._by_ipu(beat, _INPUTS))
        return host.begin_share(refill, meanwhile, conditions.prefetch_depth)

    def _exposed(self, interval: Interval, begin_share: float) -> float:
        beside, transfers = 0.0, 0.0
        for beat in interval.beats:
            beside += _cycles_of(self._synchronised(self._work(beat), self._copies(beat)))
            for moved, overlaps in (
                (self._inputs(beat, begin_share), self.conditions.overlaps_input),
                (self._outputs(beat), self.conditions.overlaps_output),
            ):
                cycles = _cycles_of(self._synchronised(moved))
                beside += 0.0 if overlaps else cycles
                transfers += cycles if overlaps else 0.0
        return max(0.0, transfers - beside) / transfers if transfers else 0.0


def _pieces(kind: str, cycles: PhaseCycles, stage: int | None = None, lag: int | None = None) -> list[Piece]:
    """Return a pass or an update: its collectives, its moves to and from streaming memory, then its work."""
    collective = PhaseCycles(global_exchange=cycles.global_exchange)
    offload = PhaseCycles(stream_copy_begin=cycles.stream_copy_begin, stream_copy_mid=cycles.stream_copy_mid)
    work = PhaseCycles(cycles.on_tile_execute, cycles.do_exchange, internal_sync=cycles.internal_sync)
    parts = (("collective", collective), ("offload", offload), (kind, work))
    pieces = (Piece(name, part, stage, lag) for name, part in parts)
    return [piece for piece in pieces if piece.length > 0]
