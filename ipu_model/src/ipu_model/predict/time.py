"""The time of a call on the device: how long each part of a cycle takes, sums by IPU and activity, and the timeline.

Parts follow one another, and all IPUs synchronise before each and wait for the slowest. A cycle has (PopART,
docs/notes/transforms/pipelining.md) inputs of stages in their forward pass, passes, results, and copies between IPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.predict.links import HostLink, replicas_per_machine
from ipu_model.predict.order import Beat, Interval, Round, order_of
from ipu_model.predict.profile import PhaseCycles, Span
from ipu_model.predict.program import Program
from ipu_model.predict.work import StageWork, Workload, workload_of


def time_of(program: Program) -> DeviceTime:
    """Return the device time of a call (hardware reference, D and E); `Error`: transfers that it cannot do."""
    workload, order = workload_of(program), order_of(program)
    overlaps = program.overlaps_input or program.overlaps_output
    if overlaps and not program.io_tiles:
        raise Error("Overlapped transfers need tiles of their own: reserve I/O tiles, 32 to 192 of them.")
    if overlaps and order.is_pipelined:
        raise Error("Transfers cannot overlap with the computation of a pipeline; use sharded execution instead.")
    system, returns, replicas = program.system, program.returns, program.batching.replicas
    conditions = Conditions(
        host=HostLink(system, program.calibration.stream, replicas_per_machine(program), replicas),
        copy_bytes_per_second=system.link_bytes_per_second * program.calibration.pipeline.copy_link_share,
        sync_cycles=float(system.chip.global_sync_cycles),
        clock_hz=system.chip.clock_hz,
        returns_all=returns.keep is Keep.ALL or (returns.keep is Keep.EVERY_N and returns.period == 1),
        # Sums stay on the device until the call ends.
        returned=returns.multiplier(program.batching) // replicas,
        sends_data=not program.synthetic_data,
        prefetch_depth=program.prefetch_depth,
        overlaps_input=program.overlaps_input,
        overlaps_output=program.overlaps_output,
    )
    return DeviceTime(Call(workload, order.rounds, conditions, training=program.training))


# --------------------------------------------------------------------------- parts of a call


class Piece(NamedTuple):
    """One activity of one IPU: `kind` is a kind of span; in cycle c it works on micro-batch c - `lag`."""

    kind: str
    cycles: PhaseCycles
    stage: int | None = None
    lag: int | None = None


@dataclass(frozen=True)
class Segment:
    """A stretch common to all IPUs, which wait for the slowest: "work" of a beat, "update", or one of `SHARES`."""

    kind: str
    cycles: float
    pieces: tuple[tuple[Piece, ...], ...]

    @staticmethod
    def of(kind: str, pieces: Mapping[int, Sequence[Piece]], ipus: int) -> Segment:
        by_ipu = tuple(tuple(pieces.get(ipu, ())) for ipu in range(ipus))
        return Segment(kind, max(map(_length, by_ipu), default=0.0), by_ipu)

    def times(self, count: float) -> Segment:
        pieces = tuple(tuple(p._replace(cycles=p.cycles.times(count)) for p in by_ipu) for by_ipu in self.pieces)
        return Segment(self.kind, self.cycles * count, pieces)

    @property
    def decisive(self) -> tuple[Piece, ...]:
        """The pieces that determine the segment's time: those of the slowest IPU, or of all if they take turns."""
        longest = max(self.pieces, key=_length, default=())
        if any(piece.kind == "wait" for piece in longest):
            return tuple(piece for own in self.pieces for piece in own if piece.kind != "wait")
        return longest


def _length(pieces: Iterable[Piece]) -> float:
    return sum(piece.cycles.total for piece in pieces)


@dataclass(frozen=True)
class Conditions:
    """The machine and settings that, with the workload, determine its times; a call has `returned` results."""

    host: HostLink
    copy_bytes_per_second: float
    sync_cycles: float
    clock_hz: float
    returns_all: bool = False
    returned: int = 1
    sends_data: bool = True
    prefetch_depth: int = 1
    overlaps_input: bool = False
    overlaps_output: bool = False


class Call:
    """Everything in one call as segments; `rounds` have how often each repeats, and one cycle of each interval."""

    def __init__(self, workload: Workload, rounds: Iterable[Round], conditions: Conditions, *, training: bool) -> None:
        self.workload, self.conditions = workload, conditions
        # The bytes of each stage in every micro-batch.
        self._read = [stage.inputs if conditions.sends_data else 0.0 for stage in workload.stages]
        written = conditions.returns_all and conditions.sends_data
        self._written = [stage.outputs if written else 0.0 for stage in workload.stages]
        wait = conditions.host.constants.run_wait_seconds * conditions.clock_hz
        waits = (Piece("wait", PhaseCycles(stream_copy_begin=wait)),)
        self.start = (Segment("run start", wait, (waits,) * workload.ipus),) if wait else ()
        self.rounds = [(each, [(interval, self._interval(interval)) for interval in each.intervals]) for each in rounds]
        self.update = self._update() if training else ()
        at_end = conditions.sends_data and not conditions.returns_all
        sent = [self._transfer("stream out", {stage.ipu: stage.outputs}) for stage in workload.stages if at_end]
        self.returned, self.results = self._synchronised(*sent), conditions.returned

    def _interval(self, interval: Interval) -> tuple[Segment, ...]:
        """Return one of its cycles; of transfers beside the work, what takes longer than that is `exposed`."""
        host, conditions, exposed = self.conditions.host, self.conditions, 1.0
        refill = sum(host.refill_cycles(self._by_ipu(beat, self._read)) for beat in interval.beats)
        transfers, rest = self._sums(interval, 0.0)
        hides_inputs = interval.overlapped and conditions.overlaps_input
        meanwhile = transfers if hides_inputs else transfers + rest
        # The length of the begin phases, as a multiple of one replica's refill.
        begin_share = host.begin_share(refill, meanwhile, conditions.prefetch_depth)
        if interval.overlapped:
            transfers, rest = self._sums(interval, begin_share)
            exposed = max(0.0, transfers - rest) / transfers if transfers else 0.0
        segments: list[Segment] = []
        for beat in interval.beats:
            parts = self._parts(beat, begin_share)
            segments += self._synchronised(*(part.times(exposed) if overlaps else part for part, overlaps in parts))
        return tuple(segments)

    def _sums(self, interval: Interval, begin_share: float) -> tuple[float, float]:
        """Return the cycles of transfers that may overlap with the rest of an interval, and those of the rest."""
        cycles = [0.0, 0.0]
        for beat in interval.beats:
            for part, overlaps in self._parts(beat, begin_share):
                cycles[not overlaps] += sum(segment.cycles for segment in self._synchronised(part))
        return cycles[0], cycles[1]

    def _parts(self, beat: Beat, begin_share: float) -> tuple[tuple[Segment, bool], ...]:
        """Return the segments of a beat, each with whether it may overlap with the work."""
        into = self._transfer("stream in", self._by_ipu(beat, self._read), begin_share)
        out = self._transfer("stream out", self._by_ipu(beat, self._written))
        overlaps = self.conditions.overlaps_input, self.conditions.overlaps_output
        return (into, overlaps[0]), (self._work(beat), False), (out, overlaps[1]), (self._copies(beat), False)

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

    def _synchronised(self, *parts: Segment) -> list[Segment]:
        segments: list[Segment] = []
        for part in parts:
            if not part.cycles:
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

    def _copies(self, beat: Beat) -> Segment:
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
        copies = {ipu: PhaseCycles(global_exchange=size / rate) for ipu, size in busiest.items() if size > 0}
        pieces = {ipu: [Piece("copy", cycles)] for ipu, cycles in copies.items()}
        return Segment.of("copy", pieces, self.workload.ipus)

    def _transfer(self, kind: str, size: Mapping[int, float], begin_share: float = 1.0) -> Segment:
        moving = self.conditions.host.transfer(size, to_device=kind == "stream in", begin_share=begin_share)
        return Segment.of("stream", {ipu: [Piece(kind, cycles)] for ipu, cycles in moving.items()}, self.workload.ipus)

    def _by_ipu(self, beat: Beat, sizes: Sequence[float]) -> dict[int, float]:
        by_ipu: dict[int, float] = defaultdict(float)
        for index in beat.forward:
            by_ipu[self.workload.stages[index].ipu] += sizes[index]
        return by_ipu


def _pieces(kind: str, cycles: PhaseCycles, stage: int | None = None, lag: int | None = None) -> list[Piece]:
    """Return a pass or an update: its collectives, its moves to and from streaming memory, then its work."""
    collective = PhaseCycles(global_exchange=cycles.global_exchange)
    offload = PhaseCycles(stream_copy_begin=cycles.stream_copy_begin, stream_copy_mid=cycles.stream_copy_mid)
    work = PhaseCycles(cycles.on_tile_execute, cycles.do_exchange, internal_sync=cycles.internal_sync)
    parts = (("collective", collective), ("offload", offload), (kind, work))
    return [piece for piece in (Piece(name, part, stage, lag) for name, part in parts) if piece.cycles.total > 0]


SHARES = ("main", "fill and flush", "stream", "copy", "sync", "update", "collective", "offload", "run start")
"""Fractions of the device time, which sum to 1; "main" is work in cycles in which every stage does all its passes."""

_EXTERNAL_SYNC = [field.name for field in fields(PhaseCycles)].index("external_sync")


class DeviceTime:
    """One call on the device; `cycles` of each IPU, with waiting as external sync, sum up to `device_cycles`."""

    def __init__(self, call: Call) -> None:
        self.device_cycles = 0.0
        self._call = call
        self._by_ipu = [[0.0] * len(fields(PhaseCycles)) for _ in range(call.workload.ipus)]
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)  # by kind of segment and share
        self._add(call.start, 1)
        for a_round, intervals in call.rounds:
            for interval, segments in intervals:
                work = "main" if interval.is_full else "fill and flush"
                self._add(segments, interval.count * a_round.repeats, work)
            self._add(call.update, a_round.repeats, "update")
        self._add(call.returned, call.results)
        self.cycles = tuple(PhaseCycles(*cycles) for cycles in self._by_ipu)

    # A search for the fastest settings looks at none of these.
    @cached_property
    def timeline(self) -> tuple[Span, ...]:
        return tuple(span for own in _Timeline(self._call).spans for span in own)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        whole = sum(self._spent.values())
        spent = {name: sum(cycles for (_, share), cycles in self._spent.items() if share == name) for name in SHARES}
        return {name: spent[name] / whole if whole else float(name == "main") for name in SHARES}

    @cached_property
    def limited_by(self) -> str:
        by_ipu: dict[int, list[StageWork]] = defaultdict(list)
        for stage in self._call.workload.stages:
            by_ipu[stage.ipu].append(stage)
        busiest = max(by_ipu.values(), key=lambda own: sum(stage.total for stage in own))
        slowest = f"stage {max(busiest, key=lambda stage: stage.total).index}"
        names = {"work": slowest, "copy": "inter-IPU copy", "update": "weight update"}
        parts = defaultdict(float, {slowest: 0.0})
        for (kind, share), cycles in self._spent.items():
            if kind != "sync":
                parts["pipeline fill and flush" if share == "fill and flush" else names.get(kind, kind)] += cycles
        return max(parts, key=parts.__getitem__)

    def _add(self, segments: Iterable[Segment], count: int, work: str = "main") -> None:
        for segment in segments:
            self.device_cycles += segment.cycles * count
            for ipu, sums in enumerate(self._by_ipu):
                for piece in segment.pieces[ipu]:
                    for kind, cycles in enumerate(piece.cycles.values):
                        sums[kind] += cycles * count
                sums[_EXTERNAL_SYNC] += max(0.0, segment.cycles - _length(segment.pieces[ipu])) * count
            if segment.kind not in ("work", "update"):
                self._spent[segment.kind, segment.kind] += segment.cycles * count
                continue
            for piece in segment.decisive:
                share = piece.kind if piece.kind in SHARES else work
                self._spent[segment.kind, share] += piece.cycles.total * count


_FEW = 16
"""So many identical cycles are drawn one by one, as a reader can still tell them apart; of more, only the first is."""
_MOST = 48
"""Calls of at most so many cycles are drawn update by update; of others only the first is, or both of two."""


class _Timeline:
    """A few spans that fill each IPU's row: micro-batches one by one with their numbers, many alike together."""

    def __init__(self, call: Call) -> None:
        self._clock_hz = call.conditions.clock_hz
        self.spans: list[list[Span]] = [[] for _ in range(call.workload.ipus)]
        self._ends = [0.0] * call.workload.ipus
        self._once(call.start)
        done = 0  # micro-batches
        is_short = sum(each.cycles * each.repeats for each, _ in call.rounds) <= _MOST
        for number, (a_round, intervals) in enumerate(call.rounds):
            is_drawn = a_round.repeats <= 2 or (is_short and all(interval.count <= _FEW for interval, _ in intervals))
            single = a_round.repeats if is_drawn else int(number == 0)
            for _ in range(single):
                self._micro_batches(intervals, done)
                self._once(call.update)
                done += a_round.micro_batches
            left = a_round.repeats - single
            cycles = (segment.times(interval.count * left) for interval, segments in intervals for segment in segments)
            self._together(cycles, left * a_round.micro_batches, "micro-batches")
            self._together((segment.times(left) for segment in call.update), left, "updates")
            done += left * a_round.micro_batches
        if call.results == 1:
            self._once(call.returned)
        else:
            self._together((segment.times(call.results) for segment in call.returned), call.results, "results")

    def _micro_batches(self, intervals: Iterable[tuple[Interval, Sequence[Segment]]], done: int) -> None:
        """Write the passes of one update, before which the call has `done` so many micro-batches."""
        for interval, segments in intervals:
            single = interval.count if interval.count <= _FEW else 1
            for cycle in range(interval.start, interval.start + single):
                self._once(segments, done + cycle)
            left = interval.count - single
            self._together((segment.times(left) for segment in segments), left, "micro-batches")

    def _once(self, segments: Sequence[Segment], cycle: int | None = None) -> None:
        """Write segments that happen once; `cycle` determines the micro-batches that they work on."""
        for ipu in range(len(self.spans)):
            for piece in _with_waits(segments, ipu):
                micro_batch = None if cycle is None or piece.lag is None else cycle - piece.lag
                self._write(ipu, piece, 1, _label(piece), micro_batch)

    def _together(self, segments: Iterable[Segment], count: int, what: str) -> None:
        """Write segments that are the sum of `count` alike, of each kind of work at once."""
        if not count:
            return
        every = tuple(segments)
        for ipu in range(len(self.spans)):
            together: dict[tuple[str, int | None], Piece] = {}
            for piece in _with_waits(every, ipu):
                known = together.get((piece.kind, piece.stage))
                cycles = piece.cycles if known is None else known.cycles + piece.cycles
                together[piece.kind, piece.stage] = (known or piece)._replace(cycles=cycles)
            for piece in together.values():
                self._write(ipu, piece, count, f"{_label(piece)}, x {count} {what}", None)

    def _write(self, ipu: int, piece: Piece, repeats: int, label: str, micro_batch: int | None) -> None:
        seconds, start = piece.cycles.total / self._clock_hz, self._ends[ipu]
        spans = self.spans[ipu]
        if repeats == 1 and spans and piece.kind == spans[-1].kind == "wait" and spans[-1].repeats == 1:
            begun = spans.pop()  # merge consecutive waits
            start, seconds = begun.start, begun.seconds + seconds
        spans.append(Span(f"IPU {ipu}", piece.kind, start, seconds, label, piece.stage, micro_batch, repeats, ipu))
        self._ends[ipu] = start + seconds


def _with_waits(segments: Iterable[Segment], ipu: int) -> Iterator[Piece]:
    for segment in segments:
        pieces = segment.pieces[ipu]
        yield from pieces
        left = segment.cycles - _length(pieces)
        if left > 1e-9 * segment.cycles:
            yield Piece("wait", PhaseCycles(external_sync=left))


def _label(piece: Piece) -> str:
    return piece.kind if piece.stage is None else f"{piece.kind} of stage {piece.stage}"
