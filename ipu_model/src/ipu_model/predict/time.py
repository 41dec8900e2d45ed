"""The time of a call on the device, summed by IPU and by activity, and its timeline.

`work` describes the work, `order` its order, and `timing` how long each part of a cycle takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.predict.costs import Costs
from ipu_model.predict.links import HostLink, replicas_per_machine
from ipu_model.predict.order import Order, Round
from ipu_model.predict.profile import PhaseCycles, Span
from ipu_model.predict.program import Program
from ipu_model.predict.timing import Call, Conditions, Piece, Segment, values_of
from ipu_model.predict.work import StageWork, Workload, workload_of


@dataclass(frozen=True)
class DeviceTime:
    """One call of a program on the device: D device iterations of G micro-batches and an update each.

    `cycles` has one entry for each IPU of a replica; their totals are all `device_cycles`, because waiting counts as
    external sync. `shares` are fractions of that time by name and sum to 1. `limited_by` is one of "stage <k>",
    "stream", "pipeline fill and flush", "weight update", "inter-IPU copy", "run start".
    """

    cycles: tuple[PhaseCycles, ...]
    device_cycles: float
    timeline: tuple[Span, ...]
    shares: Mapping[str, float]
    limited_by: str


def time_of(program: Program, costs: Costs, order: Order) -> DeviceTime:
    """Return the time of one call of a program on the device, in tile-clock cycles.

    Sources of the formulas: hardware reference, sections D and E. `Error`: tensors are off chip on a machine without
    streaming memory, or overlapped transfers are requested without I/O tiles or in a pipeline.
    """
    workload = workload_of(program, costs, order)
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
        sends_inputs=not program.synthetic_data,
        sends_outputs=not program.synthetic_data,
        prefetch_depth=program.prefetch_depth,
        overlaps_input=program.overlaps_input,
        overlaps_output=program.overlaps_output,
    )
    return run(workload, order.rounds, conditions, training=program.training)


def run(workload: Workload, rounds: Iterable[Round], conditions: Conditions, *, training: bool) -> DeviceTime:
    call = Call(workload, rounds, conditions, training=training)
    sums = _Sums(call)
    return DeviceTime(
        cycles=tuple(PhaseCycles(*cycles) for cycles in sums.by_ipu),
        device_cycles=sums.device_cycles,
        timeline=_Timeline(call, conditions.clock_hz, "update" if training else "round").spans(),
        shares=sums.shares(),
        limited_by=sums.limited_by(workload.stages),
    )


# --------------------------------------------------------------------------------------- sums


SHARES = ("main", "fill and flush", "stream", "copy", "sync", "update", "collective", "offload", "run start")
"""The fractions of the device time; "main" is the work in cycles in which every stage does all its passes."""

_SHARE_OF_SEGMENT = {"stream": "stream", "copy": "copy", "sync": "sync", "start": "run start"}
_SHARE_OF_PIECE = {"collective": "collective", "offload": "offload", "update": "update"}
_EXTERNAL_SYNC = [field.name for field in fields(PhaseCycles)].index("external_sync")


class _Sums:
    """The sums of one call: `by_ipu` are the cycles of each IPU by activity, where waiting counts as external sync."""

    def __init__(self, call: Call) -> None:
        self.device_cycles = 0.0
        self.by_ipu = [[0.0] * len(fields(PhaseCycles)) for _ in range(call.workload.ipus)]
        self._spent = dict.fromkeys(SHARES, 0.0)
        self._in_updates = 0.0
        self._moved_in_passes = 0.0
        self._add(call.start, 1)
        for repeats, intervals in call.rounds:
            for interval, segments in intervals:
                self._add(segments, interval.count * repeats, "main" if interval.is_full else "fill and flush")
            self._add(call.update, repeats, "update")
        self._add(call.returned, call.results)

    def shares(self) -> dict[str, float]:
        whole = sum(self._spent.values())
        return {name: spent / whole if whole else float(name == "main") for name, spent in self._spent.items()}

    def limited_by(self, stages: Iterable[StageWork]) -> str:
        by_ipu: dict[int, list[StageWork]] = defaultdict(list)
        for stage in stages:
            by_ipu[stage.ipu].append(stage)
        busiest = max(by_ipu.values(), key=lambda own: sum(stage.total for stage in own))
        parts = {
            f"stage {max(busiest, key=lambda stage: stage.total).index}": self._spent["main"] + self._moved_in_passes,
            "pipeline fill and flush": self._spent["fill and flush"],
            "stream": self._spent["stream"],
            "inter-IPU copy": self._spent["copy"],
            "weight update": self._in_updates,
            "run start": self._spent["run start"],
        }
        return max(parts, key=parts.__getitem__)

    def _add(self, segments: Iterable[Segment], count: int, work: str = "main") -> None:
        """Add `count` repetitions of `segments`, whose work counts as `work`."""
        for segment in segments:
            self.device_cycles += segment.cycles * count
            for ipu, sums in enumerate(self.by_ipu):
                for piece in segment.pieces[ipu]:
                    for kind, cycles in enumerate(values_of(piece.cycles)):
                        sums[kind] += cycles * count
                sums[_EXTERNAL_SYNC] += segment.waits(ipu) * count
            if segment.kind in _SHARE_OF_SEGMENT:
                self._spent[_SHARE_OF_SEGMENT[segment.kind]] += segment.cycles * count
                continue
            if segment.kind == "update":
                self._in_updates += segment.cycles * count
            for piece in segment.decisive:
                spent = piece.length * count
                self._spent[_SHARE_OF_PIECE.get(piece.kind, work)] += spent
                if segment.kind == "work" and piece.kind in _SHARE_OF_PIECE:
                    self._moved_in_passes += spent


# ----------------------------------------------------------------------------------- timeline

_FEW = 16
"""So many identical cycles are drawn one by one, as a reader can still tell them apart; of more, only the first is."""


class _Timeline:
    """The timeline of one call: a small number of spans, whatever is repeated, that fill each IPU's row without a gap.

    The first update is shown cycle by cycle; of many identical cycles only the first is drawn. The other cycles and all
    later updates, called `round_name`, are drawn together: one span for each kind of work stands for all repetitions.
    """

    def __init__(self, call: Call, clock_hz: float, round_name: str) -> None:
        self._clock_hz = clock_hz
        self._spans: list[list[Span]] = [[] for _ in range(call.workload.ipus)]
        self._ends = [0.0] * call.workload.ipus
        self._once(call.start)
        for number, (repeats, intervals) in enumerate(call.rounds):
            if number == 0:
                for interval, segments in intervals:
                    single = interval.count if interval.count <= _FEW else 1
                    for cycle in range(interval.start, interval.start + single):
                        self._once(segments, cycle)
                    self._repeated(segments, interval.count - single, "micro-batch")
                self._once(call.update)
                repeats -= 1
            cycles = [segment.times(interval.count) for interval, segments in intervals for segment in segments]
            self._repeated((*cycles, *call.update), repeats, round_name)
        self._repeated(call.returned, call.results, "result")

    def spans(self) -> tuple[Span, ...]:
        return tuple(span for own in self._spans for span in own)

    def _once(self, segments: Sequence[Segment], cycle: int | None = None) -> None:
        """Write segments that happen once; `cycle` determines the micro-batches that they work on."""
        for ipu in range(len(self._spans)):
            for piece in _with_waits(segments, ipu):
                micro_batch = None if cycle is None or piece.lag is None else cycle - piece.lag
                label = _label(piece) + ("" if micro_batch is None else f", micro-batch {micro_batch}")
                self._write(ipu, piece, 1, label, micro_batch)

    def _repeated(self, segments: Sequence[Segment], count: int, what: str) -> None:
        """Write `count` repetitions of segments as one span for each kind of work of each IPU."""
        if count == 1:
            self._once(segments)
        if count <= 1:
            return
        plural = f"{what}es" if what.endswith("ch") else f"{what}s"
        for ipu in range(len(self._spans)):
            together: dict[tuple[str, int | None], Piece] = {}
            for piece in _with_waits(segments, ipu):
                known = together.get((piece.kind, piece.stage))
                cycles = piece.cycles if known is None else known.cycles + piece.cycles
                together[piece.kind, piece.stage] = (known or piece)._replace(cycles=cycles)
            for piece in together.values():
                self._write(ipu, piece.times(count), count, f"{_label(piece)}, x {count} {plural}", None)

    def _write(self, ipu: int, piece: Piece, repeats: int, label: str, micro_batch: int | None) -> None:
        seconds, start = piece.length / self._clock_hz, self._ends[ipu]
        spans = self._spans[ipu]
        if repeats == 1 and spans and piece.kind == spans[-1].kind == "wait" and spans[-1].repeats == 1:
            begun = spans.pop()  # merge consecutive waits
            start, seconds = begun.start, begun.seconds + seconds
        spans.append(Span(f"IPU {ipu}", piece.kind, start, seconds, label, piece.stage, micro_batch, repeats, ipu))
        self._ends[ipu] = start + seconds


def _with_waits(segments: Iterable[Segment], ipu: int) -> Iterator[Piece]:
    """Yield the pieces of an IPU, each segment's followed by the wait for the slowest IPU."""
    for segment in segments:
        pieces = segment.pieces[ipu]
        yield from pieces
        left = segment.cycles - sum(piece.length for piece in pieces)
        if left > 1e-9 * segment.cycles:
            yield Piece("wait", PhaseCycles(external_sync=left))


def _label(piece: Piece) -> str:
    return piece.kind if piece.stage is None else f"{piece.kind} of stage {piece.stage}"
