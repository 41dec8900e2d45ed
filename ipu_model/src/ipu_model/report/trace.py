"""The timeline as trace events, for ui.perfetto.dev and chrome://tracing.

The format is the "Trace Event Format" of Chromium's trace viewer: one process for the program, one thread for
each row of the timeline, "X" events with start and length in microseconds, "M" events that name them.
"""

from __future__ import annotations

import json
from typing import Any

from ipu_model.predict.profile import Profile, Span
from ipu_model.report.breakdown import Row, all_rows

_PROCESS = 1
_NANOSECONDS = 1_000_000_000


def trace_json(profile: Profile) -> str:
    """Return the timeline of one call as trace-event JSON; all times are modelled."""
    rows = all_rows(profile.timeline)
    names = [_metadata("process_name", 0, name=f"{profile.name} (modelled on {profile.machine.name})")]
    spans: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        names += [_metadata("thread_name", number, name=row.name)]
        names += [_metadata("thread_sort_index", number, sort_index=number)]
        spans += _events(row, number)
    spans.sort(key=lambda event: (event["ts"], event["tid"]))
    about = {
        "name": profile.name,
        "machine": str(profile.machine),
        "source": "modelled by the IPU Model",
        "samples per second, end to end": profile.samples_per_second,
        "limited by": profile.limited_by,
    }
    trace = {"traceEvents": names + spans, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(trace, separators=(",", ":"), allow_nan=False)


def _metadata(kind: str, thread: int, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": arguments}


def _events(row: Row, thread: int) -> list[dict[str, Any]]:
    """Return the events of one row; none starts before the one before it has ended, to the nanosecond."""
    events = []
    free = 0
    for span in row.spans:
        # Whole nanoseconds, and lengths as differences: what touches in the profile touches here.
        start = max(free, round(span.start * _NANOSECONDS))
        free = max(start, round(span.end * _NANOSECONDS))
        event = {"ph": "X", "name": _name(span), "cat": span.kind, "ts": start / 1000, "dur": (free - start) / 1000}
        events.append({**event, "pid": _PROCESS, "tid": thread, "args": _arguments(span)})
    return events


def _name(span: Span) -> str:
    parts = [span.kind]
    if span.micro_batch is not None:
        parts.append(str(span.micro_batch + 1))
    if span.repeats > 1:
        parts.append(f"x {span.repeats}")
    return " ".join(parts)


def _arguments(span: Span) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if span.label:
        found["label"] = span.label
    for name, value in (("stage", span.stage), ("micro-batch", span.micro_batch)):
        if value is not None:
            found[name] = value
    if span.repeats > 1:
        found["repeats"] = span.repeats
    return found
