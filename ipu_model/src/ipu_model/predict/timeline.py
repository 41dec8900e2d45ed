"""The timeline of one call: a small number of spans, whatever is repeated, that fill each IPU's row without a gap.

The first update is shown cycle by cycle, in the order in which forward passes, recomputation and backward passes
alternate. Of many identical cycles only the first is drawn. The other cycles and all later updates are drawn together:
one span for each kind of work stands for all its repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ipu_model.predict.profile import PhaseCycles, Span
from ipu_model.predict.segments import Piece, Segment
from ipu_model.predict.timing import Call, TimedInterval

_FEW = 16
"""So many identical cycles are drawn one by one, as a reader can still tell them apart; of more, only the first is."""


def timeline_of(call: Call, clock_hz: float, round_name: str) -> tuple[Span, ...]:
    """Return the spans of a call, whose rounds of micro-batches are called `round_name`."""
    writer = _Writer(call.ipus, clock_hz)
    writer.once(call.start)
    for number, each in enumerate(call.rounds):
        left = each.repeats
        if number == 0:
            for timed in each.intervals:
                writer.interval(timed)
            writer.once(call.update)
            left -= 1
        if left:
            cycles = [segment.times(t.interval.count) for t in each.intervals for segment in t.segments]
            writer.repeated((*cycles, *call.update), left, round_name)
    writer.repeated(call.returned, call.results, "result")
    return writer.spans


@dataclass
class _Writer:
    """Writes spans for every IPU, from where the last ones ended."""

    ipus: int
    clock_hz: float
    _spans: list[list[Span]] = field(init=False)
    _ends: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._spans = [[] for _ in range(self.ipus)]
        self._ends = [0.0] * self.ipus

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans written, by IPU and in order of time."""
        return tuple(span for own in self._spans for span in own)

    def interval(self, timed: TimedInterval) -> None:
        """Write the cycles of an interval."""
        interval, segments = timed.interval, timed.segments
        single = interval.count if interval.count <= _FEW else 1
        for cycle in range(interval.start, interval.start + single):
            self.once(segments, cycle)
        if single < interval.count:
            self.repeated(segments, interval.count - single, "micro-batch")

    def once(self, segments: Iterable[Segment], cycle: int | None = None) -> None:
        """Write segments that happen once; `cycle` determines the micro-batches that they work on."""
        for segment in segments:
            for ipu, pieces in enumerate(_with_waits(segment)):
                for piece in pieces:
                    micro_batch = None if cycle is None or piece.lag is None else cycle - piece.lag
                    self._write(ipu, piece, 1, _label(piece, micro_batch), micro_batch)

    def repeated(self, segments: Sequence[Segment], count: int, what: str) -> None:
        """Write `count` repetitions of segments as one span for each kind of work of each IPU."""
        if count == 1:
            self.once(segments)
            return
        by_ipu = [_with_waits(segment) for segment in segments]
        for ipu in range(self.ipus):
            for piece in _together(piece for pieces in by_ipu for piece in pieces[ipu]):
                self._write(ipu, piece.times(count), count, f"{_label(piece, None)}, x {count} {_plural(what)}", None)

    def _write(self, ipu: int, piece: Piece, repeats: int, label: str, micro_batch: int | None) -> None:
        seconds, start = piece.length / self.clock_hz, self._ends[ipu]
        own = self._spans[ipu]
        if repeats == 1 and own and piece.kind == own[-1].kind == "wait" and own[-1].repeats == 1:
            begun = own.pop()  # merge consecutive waits
            start, seconds = begun.start, begun.seconds + seconds
        own.append(Span(f"IPU {ipu}", piece.kind, start, seconds, label, piece.stage, micro_batch, repeats, ipu))
        self._ends[ipu] = start + seconds


def _with_waits(segment: Segment) -> list[tuple[Piece, ...]]:
    """Return the pieces of every IPU, followed by its wait for the slowest."""
    found = []
    for own in segment.pieces:
        left = segment.cycles - sum(piece.length for piece in own)
        wait = (Piece("wait", PhaseCycles(external_sync=left)),) if left > 1e-9 * segment.cycles else ()
        found.append((*own, *wait))
    return found


def _together(pieces: Iterable[Piece]) -> list[Piece]:
    """Return one piece for each kind of work of each stage, in order of appearance."""
    found: dict[tuple[str, int | None], Piece] = {}
    for piece in pieces:
        key = piece.kind, piece.stage
        known = found.get(key)
        found[key] = piece if known is None else known._replace(cycles=known.cycles + piece.cycles)
    return list(found.values())


def _plural(what: str) -> str:
    return f"{what}es" if what.endswith("ch") else f"{what}s"


def _label(piece: Piece, micro_batch: int | None) -> str:
    stage = "" if piece.stage is None else f" of stage {piece.stage}"
    return f"{piece.kind}{stage}" + ("" if micro_batch is None else f", micro-batch {micro_batch}")
