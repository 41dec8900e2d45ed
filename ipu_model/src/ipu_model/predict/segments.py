"""A schedule is a sequence of segments that all IPUs of a replica enter and leave together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from ipu_model.predict.profile import PhaseCycles

NOTHING = PhaseCycles()
_KINDS = tuple(field.name for field in fields(PhaseCycles))
_values: Callable[[PhaseCycles], tuple[float, ...]] = attrgetter(*_KINDS)
_EXTERNAL_SYNC = _KINDS.index("external_sync")


def length(cycles: PhaseCycles) -> float:
    """Return all cycles together (`PhaseCycles.total`, which sweeps would call millions of times)."""
    return sum(_values(cycles))


class Piece(NamedTuple):
    """One activity of one IPU: `kind` is a kind of span; in cycle c it works on micro-batch c - `lag`."""

    kind: str
    cycles: PhaseCycles
    stage: int | None = None
    lag: int | None = None

    @property
    def length(self) -> float:
        """All cycles of the piece."""
        return length(self.cycles)

    def times(self, count: float) -> Piece:
        """Return the piece with `count` times the cycles."""
        return self._replace(cycles=PhaseCycles(*(value * count for value in _values(self.cycles))))


@dataclass(frozen=True)
class Segment:
    """A stretch of time that starts and ends together on all IPUs; each runs `pieces[ipu]`, then waits for the others.

    `kind` is one of "work", "stream", "copy", "sync", "update", "start".
    """

    kind: str
    cycles: float
    pieces: tuple[tuple[Piece, ...], ...]

    def times(self, count: float) -> Segment:
        """Return the segment with `count` times the cycles."""
        pieces = tuple(tuple(piece.times(count) for piece in own) for own in self.pieces)
        return Segment(self.kind, self.cycles * count, pieces)

    @property
    def longest(self) -> tuple[Piece, ...]:
        """The pieces of the slowest IPU, for which the others wait."""
        return max(self.pieces, key=_length_of_all, default=())

    def waits(self, ipu: int) -> float:
        """Return the cycles for which an IPU waits for the others."""
        return max(0.0, self.cycles - _length_of_all(self.pieces[ipu]))


class CyclesByKind:
    """Adds up the cycles of one IPU by kind; waiting counts as external sync."""

    def __init__(self) -> None:
        self._sums = [0.0] * len(_KINDS)

    def add(self, segment: Segment, ipu: int, count: int) -> None:
        """Add `count` repetitions of a segment."""
        for piece in segment.pieces[ipu]:
            for kind, value in enumerate(_values(piece.cycles)):
                if value:
                    self._sums[kind] += value * count
        self._sums[_EXTERNAL_SYNC] += segment.waits(ipu) * count

    @property
    def cycles(self) -> PhaseCycles:
        """The sum."""
        return PhaseCycles(*self._sums)


def segment(kind: str, pieces: Mapping[int, Sequence[Piece]], ipus: int) -> Segment:
    """Return the segment that lasts as long as the slowest IPU; `pieces` by IPU."""
    own = tuple(tuple(pieces.get(ipu, ())) for ipu in range(ipus))
    return Segment(kind, max(map(_length_of_all, own), default=0.0), own)


def waiting(kind: str, cycles: float, ipus: int) -> Segment:
    """Return a segment in which every IPU waits."""
    return Segment(kind, cycles, ((),) * ipus)


def cycles_of(segments: Iterable[Segment]) -> float:
    """Return the cycles of segments one after another."""
    return sum(each.cycles for each in segments)


def _length_of_all(pieces: Iterable[Piece]) -> float:
    return sum(length(piece.cycles) for piece in pieces)
