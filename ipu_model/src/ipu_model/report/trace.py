"""The timeline in Chromium's "Trace Event Format", for ui.perfetto.dev and chrome://tracing.

A thread has a row of the timeline, or the ops of an IPU, and a counter the bytes of the fullest tile. A pass is
forward, backward with the recomputation that it alternates with, or an update. What it takes beyond its ops (the stash,
control) is left at the end of a forward pass and at the start of a backward pass, where it happens.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from ipu_model.predict.profile import IpuMemory, LivenessStep, OpProfile, Profile, Span
from ipu_model.report.breakdown import Row, all_rows
from ipu_model.report.quantities import KIB

Event: TypeAlias = dict[str, Any]

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
_PASS_OF = {FORWARD: FORWARD, "recompute": BACKWARD, BACKWARD: BACKWARD, UPDATE: UPDATE}
_CLOSE_SECONDS = 1e-9
_PROCESS = 1
_NANOSECONDS = 1_000_000_000
_MOST_OPS = 50_000
"""Executions of ops in one trace; with their counters they take about 14 MB."""


def trace_json(profile: Profile) -> str:
    """Return the timeline of one call as trace-event JSON; all times are modelled."""
    rows = [Row(row.name, tuple(passes(row.spans))) for row in all_rows(profile.timeline)]
    times = op_times(profile)
    drawn, words = _drawn(times, [span for row in rows for span in row.spans])
    memory = {ipu.ipu: ipu for ipu in profile.memory}
    names = [_metadata("process_name", 0, name=f"{profile.name} (modelled on {profile.machine.name})")]
    events: list[Event] = []
    number = 0
    for row in rows:
        ops, counters = _ops(row, times, drawn, memory)
        for name, own in ((row.name, list(_spans(row))), (f"{row.name} ops", ops)):
            if own:
                number += 1
                names += [_metadata("thread_name", number, name=name)]
                names += [_metadata("thread_sort_index", number, sort_index=number)]
                events += [{**event, "pid": _PROCESS, "tid": number} for event in own]
        events += [{**counter, "pid": _PROCESS, "tid": number} for counter in counters]
    events.sort(key=lambda event: (event["ts"], event["tid"]))
    about = {
        "name": profile.name,
        "machine": str(profile.machine),
        "source": "modelled by the IPU Model",
        "samples per second, end to end": profile.samples_per_second,
        "limited by": profile.limited_by,
        "ops": words,
    }
    trace = {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(trace, separators=(",", ":"), allow_nan=False)


def _metadata(kind: str, thread: int, **arguments: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": arguments}


def passes(spans: Sequence[Span]) -> Iterable[Span]:
    """Yield a row's spans; recomputation and the backward pass behind it alternate, so they are one "backward" span."""
    of_pass = attrgetter("stage", "micro_batch", "repeats")
    left = deque(spans)
    while left:
        span = left.popleft()
        follows = bool(left) and left[0].kind == BACKWARD and of_pass(left[0]) == of_pass(span)
        if span.kind == "recompute" and follows and abs(left[0].start - span.end) <= _CLOSE_SECONDS:
            backward = left.popleft()
            seconds = backward.end - span.start
            label = f"recomputation and {backward.label or BACKWARD}"
            yield replace(backward, start=span.start, seconds=seconds, label=label, recomputes=True)
        else:
            yield span


def _spans(row: Row) -> Iterator[Event]:
    clock = _Clock()
    for span in row.spans:
        name = ["recompute + backward" if span.recomputes else span.kind]
        arguments: dict[str, str | int] = {} if span.stage is None else {"stage": span.stage}
        if span.micro_batch is not None:
            name.append(str(span.micro_batch + 1))
            arguments |= _micro_batch(span)
        elif span.label:
            arguments["label"] = span.label
        if span.repeats > 1:
            name.append(f"x {span.repeats}")
            arguments["repeats"] = span.repeats
        yield {"ph": "X", "name": " ".join(name), "cat": span.kind, **clock.times(span), "args": arguments}


class _Clock:
    """Turns seconds into microseconds of whole nanoseconds; what touches in the profile touches here."""

    def __init__(self) -> None:
        self._free = 0

    def times(self, span: Span | OpTime) -> dict[str, float]:
        """Return start and length of a span, which never begins before the last one has ended."""
        start = max(self._free, round(span.start * _NANOSECONDS))
        self._free = max(start, round((span.start + span.seconds) * _NANOSECONDS))
        return {"ts": start / 1000, "dur": (self._free - start) / 1000}


class OpTime(NamedTuple):
    """One execution of a part of an op: its step, its place in the liveness of its IPU, and when, in seconds."""

    op: OpProfile
    step: LivenessStep
    place: int
    start: float
    seconds: float


# The ops of a pass in order, by its IPU, its kind and its stage; an update belongs to no stage.
OpTimes: TypeAlias = Mapping[tuple[int | None, str, int | None], Sequence[OpTime]]


def op_times(profile: Profile) -> OpTimes:
    """Return the ops of each pass, with how long each takes, as if all began at 0."""
    ops = {(op.node, op.part): op for op in profile.work}
    computing = profile.machine.tiles - profile.io_tiles
    slower = profile.machine.tiles / computing if computing > 0 else 1.0
    times = defaultdict[tuple[int | None, str, int | None], list[OpTime]](list)
    for memory in profile.memory:
        for place, step in enumerate(memory.liveness):
            op, during = ops.get((step.node, step.part)), _PASS_OF.get(step.phase)
            if op is not None and during is not None:
                seconds = profile.machine.seconds(op.cycles * slower)
                stage = None if during == UPDATE else step.stage
                times[memory.ipu, during, stage].append(OpTime(op, step, place, 0.0, seconds))
    return times


def within(span: Span, times: OpTimes) -> Iterator[OpTime]:
    """Yield the ops of a span, one after the other: no longer than it, at its start forward and else at its end."""
    timed = times.get((span.ipu, span.kind, None if span.kind == UPDATE else span.stage), ())
    total = sum(op.seconds for op in timed)
    if total and span.seconds > 0:
        scale = min(1.0, span.seconds / total)
        at = span.start if span.kind == FORWARD else span.end - total * scale
        for op in timed:
            yield op._replace(start=at, seconds=op.seconds * scale)
            at += op.seconds * scale


def _drawn(times: OpTimes, spans: Sequence[Span]) -> tuple[frozenset[int], str]:
    """Return which micro-batches are drawn op by op, the first ones if there is no room for all, and that in words."""
    counts: Counter[int] = Counter()
    for span in spans:
        if span.repeats == 1 and span.micro_batch is not None:
            counts[span.micro_batch] += sum(1 for _ in within(span, times))
    ordered = sorted(counts)
    totals = accumulate(counts[micro_batch] for micro_batch in ordered)
    chosen = frozenset(number for number, total in zip(ordered, totals) if total <= _MOST_OPS or number == ordered[0])
    if len(chosen) == len(counts):
        return chosen, "drawn wherever a pass is drawn on its own"
    return chosen, f"drawn for {len(chosen)} of the {len(counts)} micro-batches whose passes are drawn"


def _ops(
    row: Row, times: OpTimes, drawn: frozenset[int], memories: Mapping[int, IpuMemory]
) -> tuple[list[Event], list[Event]]:
    """Return the events of the ops of one row, and the counters of the memory that its IPU takes meanwhile."""
    events: list[Event] = []
    counters: list[Event] = []
    clock, described, before = _Clock(), set[int](), -1
    for span in row.spans:
        memory = None if span.ipu is None else memories.get(span.ipu)
        is_drawn = span.repeats == 1 and (span.micro_batch is None or span.micro_batch in drawn)
        if memory is None or not is_drawn:
            continue
        for timed in within(span, times):
            step, when = timed.step, clock.times(timed)
            about = _micro_batch(span) if timed.place in described else _facts(timed.op, step, span)
            described.add(timed.place)
            events.append({"ph": "X", "name": step.name or step.node, "cat": step.phase, **when, "args": about})
            held = round((memory.always_live_bytes + step.bytes_on_tile) / KIB)
            if held != before:
                before = held
                name = f"{row.name}: memory of the fullest tile"
                counters.append({"ph": "C", "name": name, "ts": when["ts"], "args": {"KiB": held}})
    return events, counters


def _micro_batch(span: Span) -> dict[str, int]:
    return {} if span.micro_batch is None else {"micro-batch": span.micro_batch + 1}


def _facts(op: OpProfile, step: LivenessStep, span: Span) -> dict[str, str | int | float | None]:
    facts: dict[str, str | int | float | None] = {
        "op": op.node,
        "kind": op.family,
        "pass": step.phase,
        "stage": op.stage,
        **_micro_batch(span),
        "operands": ", ".join(op.operands),
        "results": ", ".join(op.results),
        "cycles": round(op.cycles),
        "temporary bytes of a tile": round(op.temporary_bytes),
    }
    if op.flops:
        facts |= {"FLOPs": op.flops, "share of the matrix units' peak": round(op.utilisation, 3)}
    return facts | {name: text for name, text in (("plan", op.plan), ("line", op.line)) if text}
