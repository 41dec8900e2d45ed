"""The timeline as trace events, for ui.perfetto.dev and chrome://tracing.

The format is the "Trace Event Format" of Chromium's trace viewer: one process for the program, one thread for each row
of the timeline and one for the ops of each IPU, "X" events with start and length in microseconds, "C" events with the
bytes of the fullest tile, "M" events that name them. What the timeline draws as one block for many repetitions is one
event here, too: of equal micro-batches one is drawn op by op, and so are all that fill and drain a pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ipu_model.predict.profile import IpuMemory, LivenessStep, OpProfile, Profile, Span
from ipu_model.report.breakdown import Row, all_rows
from ipu_model.report.op_times import OpTime, OpTimes, passes

Event: TypeAlias = dict[str, Any]

_PROCESS = 1
_NANOSECONDS = 1_000_000_000
_KIB = 1024
_MOST_OPS = 50_000
"""Executions of ops in one trace; with their counters they take about 14 MB."""


def trace_json(profile: Profile) -> str:
    """Return the timeline of one call as trace-event JSON; all times are modelled."""
    rows = [Row(row.name, tuple(passes(row.spans))) for row in all_rows(profile.timeline)]
    shown = _Shown(profile, rows)
    names = [_metadata("process_name", 0, name=f"{profile.name} (modelled on {profile.machine.name})")]
    events: list[Event] = []
    number = 0
    for row in rows:
        ops = _Ops(shown, row)
        for name, own in ((row.name, list(_spans(row))), (f"{row.name} ops", ops.events)):
            if own:
                number += 1
                names += [_metadata("thread_name", number, name=name)]
                names += [_metadata("thread_sort_index", number, sort_index=number)]
                events += [{**event, "pid": _PROCESS, "tid": number} for event in own]
        events += [{**counter, "pid": _PROCESS, "tid": number} for counter in ops.counters]
    events.sort(key=lambda event: (event["ts"], event["tid"]))
    about = {
        "name": profile.name,
        "machine": str(profile.machine),
        "source": "modelled by the IPU Model",
        "samples per second, end to end": profile.samples_per_second,
        "limited by": profile.limited_by,
        "ops": shown.words,
    }
    trace = {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(trace, separators=(",", ":"), allow_nan=False)


def _metadata(kind: str, thread: int, **arguments: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": arguments}


# ------------------------------------------------------------------------------- passes and streams


def _spans(row: Row) -> Iterator[Event]:
    """Yield the events of one row; none starts before the one before it has ended, to the nanosecond."""
    clock = _Clock()
    for span in row.spans:
        yield {"ph": "X", "name": _name(span), "cat": span.kind, **clock.times(span), "args": _arguments(span)}


@dataclass
class _Clock:
    """Turns seconds into microseconds of whole nanoseconds; what touches in the profile touches here."""

    free: int = 0

    def times(self, span: Span | OpTime) -> dict[str, float]:
        """Return start and length of a span, which never begins before the last one has ended."""
        start = max(self.free, round(span.start * _NANOSECONDS))
        self.free = max(start, round((span.start + span.seconds) * _NANOSECONDS))
        return {"ts": start / 1000, "dur": (self.free - start) / 1000}


def _name(span: Span) -> str:
    parts = ["recompute + backward" if span.recomputes else span.kind]
    if span.micro_batch is not None:
        parts.append(str(span.micro_batch + 1))
    if span.repeats > 1:
        parts.append(f"x {span.repeats}")
    return " ".join(parts)


def _arguments(span: Span) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if span.stage is not None:
        found["stage"] = span.stage
    found |= _micro_batch(span)
    if span.label and span.micro_batch is None:
        found["label"] = span.label
    if span.repeats > 1:
        found["repeats"] = span.repeats
    return found


# ------------------------------------------------------------------------------- ops and memory


class _Shown:
    """Which passes are drawn op by op: all that the timeline draws one by one, or the first and last if those are many.

    A micro-batch is drawn in all its passes or in none.
    """

    def __init__(self, profile: Profile, rows: Iterable[Row]) -> None:
        self.times = OpTimes(profile)
        self.memory = {memory.ipu: memory for memory in profile.memory}
        counts: dict[int, int] = {}
        for span in (span for row in rows for span in row.spans if span.repeats == 1):
            if span.micro_batch is not None:
                counts[span.micro_batch] = counts.get(span.micro_batch, 0) + len(self.times.within(span))
        self._every = sorted(counts)
        self._chosen = _chosen(counts)

    @property
    def words(self) -> str:
        """Which micro-batches are drawn, in words."""
        if len(self._chosen) == len(self._every):
            return "drawn wherever a pass is drawn on its own"
        return f"drawn for {len(self._chosen)} of the {len(self._every)} micro-batches whose passes are drawn"

    def within(self, span: Span) -> tuple[OpTime, ...]:
        """Return the ops to draw for a span."""
        if span.repeats > 1 or (span.micro_batch is not None and span.micro_batch not in self._chosen):
            return ()
        return self.times.within(span)


def _chosen(counts: dict[int, int]) -> frozenset[int]:
    """Return the micro-batches to draw: alternately from both ends, as long as there is room."""
    ordered, chosen, left = sorted(counts), set[int](), _MOST_OPS
    while ordered:
        micro_batch = ordered.pop(0 if len(chosen) % 2 == 0 else -1)
        left -= counts[micro_batch]
        if left < 0 and chosen:
            break
        chosen.add(micro_batch)
    return frozenset(chosen)


@dataclass
class _Ops:
    """The events of the ops of one row, and of the memory that its IPU takes meanwhile."""

    shown: _Shown
    row: Row
    events: list[Event] = field(default_factory=list)
    counters: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock, described, before = _Clock(), set[int](), -1
        for span in self.row.spans:
            memory = None if span.ipu is None else self.shown.memory.get(span.ipu)
            if memory is None:
                continue
            for each in self.shown.within(span):
                times = clock.times(each)
                op, is_new = self.shown.times.op_of(each.step), each.place not in described
                described.add(each.place)
                about = _facts(op, each.step, span) if op is not None and is_new else _micro_batch(span)
                name = each.step.name or each.step.node
                self.events.append({"ph": "X", "name": name, "cat": each.step.phase, **times, "args": about})
                held = _kib(memory, each.step)
                if held != before:
                    before = held
                    args = {"KiB": held}
                    self.counters.append({"ph": "C", "name": self._memory_name, "ts": times["ts"], "args": args})

    @property
    def _memory_name(self) -> str:
        return f"{self.row.name}: memory of the fullest tile"


def _micro_batch(span: Span) -> dict[str, int]:
    """Return the number of a micro-batch as viewers show it: counted from 1, as in the names of passes."""
    return {} if span.micro_batch is None else {"micro-batch": span.micro_batch + 1}


def _kib(memory: IpuMemory, step: LivenessStep) -> int:
    return round((memory.always_live_bytes + step.bytes_on_tile) / _KIB)


def _facts(op: OpProfile, step: LivenessStep, span: Span) -> dict[str, str | int | float | None]:
    """Return what a viewer shows of an op: once for each, as its repetitions are the same."""
    found: dict[str, str | int | float | None] = {
        "op": op.node, "kind": op.family, "pass": step.phase, "stage": op.stage, **_micro_batch(span),
        "operands": ", ".join(op.operands), "results": ", ".join(op.results), "cycles": round(op.cycles),
        "temporary bytes of a tile": round(op.temporary_bytes),
    }  # fmt: skip
    if op.flops:
        found |= {"FLOPs": op.flops, "share of the matrix units' peak": round(op.utilisation, 3)}
    return found | {name: text for name, text in (("plan", op.plan), ("line", op.line)) if text}
