"""Adds a call up: cycles of every IPU by kind, and the time of all by what it is spent on."""

from __future__ import annotations

from collections.abc import Iterable

from ipu_model.profiling.data import PhaseCycles
from ipu_model.schedule.call import Call
from ipu_model.schedule.segments import CyclesByKind, Piece, Segment

SHARES = ("main", "fill and flush", "stream", "copy", "sync", "update", "collective", "offload", "run start")
"""The parts of the device time; work counts as "main" in cycles in which every stage does all its passes."""

_SHARE_OF_SEGMENT = {"stream": "stream", "copy": "copy", "sync": "sync", "start": "run start"}
_SHARE_OF_PIECE = {"collective": "collective", "offload": "offload", "update": "update"}


class Account:
    """The sums of one call."""

    def __init__(self, call: Call) -> None:
        self.device_cycles = 0.0
        self._by_ipu = [CyclesByKind() for _ in range(call.ipus)]
        self._spent = dict.fromkeys(SHARES, 0.0)
        self._in_updates = 0.0
        self._moved_in_passes = 0.0
        self._add(call.start, 1)
        for each in call.rounds:
            for timed in each.intervals:
                count = timed.interval.count * each.repeats
                self._add(timed.segments, count, "main" if timed.interval.is_full else "fill and flush")
            self._add(call.update, each.repeats, "update")
        self._add(call.returned, call.results)

    @property
    def cycles(self) -> tuple[PhaseCycles, ...]:
        """The cycles of each IPU by kind."""
        return tuple(own.cycles for own in self._by_ipu)

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the device time, which sum to 1."""
        whole = sum(self._spent.values())
        return {name: spent / whole if whole else float(name == "main") for name, spent in self._spent.items()}

    def limited_by(self, slowest_stage: int) -> str:
        """Return what takes most of the time (see `Schedule.limited_by`)."""
        parts = {
            f"stage {slowest_stage}": self._spent["main"] + self._moved_in_passes,
            "pipeline fill and flush": self._spent["fill and flush"],
            "stream": self._spent["stream"],
            "inter-IPU copy": self._spent["copy"],
            "weight update": self._in_updates,
        }
        return max(parts, key=parts.__getitem__)

    def _add(self, segments: Iterable[Segment], count: int, work: str = "main") -> None:
        """Add `count` repetitions of `segments`, whose work counts as `work`."""
        for segment in segments:
            self.device_cycles += segment.cycles * count
            for ipu, own in enumerate(self._by_ipu):
                own.add(segment, ipu, count)
            if segment.kind in _SHARE_OF_SEGMENT:
                self._spent[_SHARE_OF_SEGMENT[segment.kind]] += segment.cycles * count
                continue
            if segment.kind == "update":
                self._in_updates += segment.cycles * count
            self._share(segment, count, work)

    def _share(self, segment: Segment, count: int, work: str) -> None:
        for piece in _decisive(segment):
            spent = piece.length * count
            self._spent[_SHARE_OF_PIECE.get(piece.kind, work)] += spent
            if segment.kind == "work" and piece.kind in _SHARE_OF_PIECE:
                self._moved_in_passes += spent


def _decisive(segment: Segment) -> list[Piece]:
    """Return what the time of a segment is spent on: what the slowest IPU does, or all where IPUs take turns."""
    longest = segment.longest
    if any(piece.kind == "wait" for piece in longest):
        return [piece for own in segment.pieces for piece in own if piece.kind != "wait"]
    return list(longest)
