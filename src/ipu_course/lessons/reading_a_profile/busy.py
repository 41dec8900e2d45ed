"""The share of a step in which each IPU is busy, from the events of a trace, and how learners miss it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from ipu_course import engine

if TYPE_CHECKING:
    from ipu_course.engine import Profile

Busy = Callable[[Mapping[str, Any]], Mapping[str, float]]
WAIT, OPS, IPU = "wait", " ops", "IPU"

# A trace by hand: two IPUs for 160 microseconds, from 20 to 180. The host's event begins before them.
_ROWS = ("host", "IPU 0", "IPU 0 ops", "IPU 1")
_EVENTS = (
    (1, "call", 0.0, 190.0), (2, "stream in", 20.0, 10.0), (2, "forward", 30.0, 30.0), (3, "forward", 30.0, 12.0),
    (3, "forward", 42.0, 18.0), (2, WAIT, 60.0, 40.0), (2, "backward", 100.0, 80.0), (4, WAIT, 20.0, 50.0),
    (4, "forward", 70.0, 40.0),
)  # fmt: skip
BY_HAND: Mapping[str, Any] = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "by hand"}},
        *(
            {"ph": "M", "name": name, "pid": 1, "tid": row, "args": {key: value}}
            for row, title in enumerate(_ROWS, 1)
            for name, key, value in (("thread_name", "name", title), ("thread_sort_index", "sort_index", row))
        ),
        *(
            {"ph": "X", "name": f"{kind} 1", "cat": kind, "ts": start, "dur": length, "pid": 1, "tid": row, "args": {}}
            for row, kind, start, length in _EVENTS
        ),
        {"ph": "C", "name": "KiB of the fullest tile", "ts": 30.0, "pid": 1, "tid": 3, "args": {"KiB": 12}},
    ]
}
BUSY_BY_HAND = {"IPU 0": 0.75, "IPU 1": 0.25}


def rows_of(trace: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the events with a length of each row of a trace, by the row's name."""
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return {
        name: [event for event in events if event["ph"] == "X" and event["tid"] == row] for row, name in names.items()
    }


def is_ipu(name: str) -> bool:
    """Tell whether a row shows what an IPU does, pass by pass."""
    return name.startswith(IPU) and not name.endswith(OPS)


def busy_in(events: Sequence[Mapping[str, Any]], *, waits: bool = False) -> float:
    """Return the microseconds of events, without those that wait."""
    return float(sum(event["dur"] for event in events if waits or event["cat"] != WAIT))


def _length(events: Sequence[Mapping[str, Any]], begin: float | None = None) -> float:
    ends = [event["ts"] + event["dur"] for event in events]
    return float(max(ends) - (min(event["ts"] for event in events) if begin is None else begin))


def busy_of_cycles(profile: Profile) -> dict[str, float]:
    """Return the same shares from the cycles by phase: all but waits for other IPUs and for the first start."""
    cycles = engine.phases(profile)
    whole = [sum(each) for each in zip(*cycles.values())]
    start = profile.shares["run start"]
    return {f"{IPU} {ipu}": 1 - cycles["ExternalSync"][ipu] / every - start for ipu, every in enumerate(whole)}


def mistaken(trace: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return what known mistakes give for each IPU, by the hint that names the mistake."""
    rows = rows_of(trace)
    ipus = {name: events for name, events in rows.items() if is_ipu(name)}
    every = [event for events in ipus.values() for event in events]
    whole, host = _length(every), _length([event for events in rows.values() for event in events])
    both = {name: busy_in(events) + busy_in(rows.get(f"{name}{OPS}", [])) for name, events in ipus.items()}
    return {
        "Events of the kind 'wait' are in your sum: leave them out.": {
            name: busy_in(events, waits=True) / whole for name, events in ipus.items()
        },
        "Your step begins with the host's call. Measure from the first event of an IPU to the last.": {
            name: busy_in(events) / host for name, events in ipus.items()
        },
        "Your step ends for each IPU with its own last event. All IPUs share one step, and the last of them ends it.": {
            name: busy_in(events) / _length(events) for name, events in ipus.items()
        },
        "Your step is measured from 0, but the IPUs begin later.": {
            name: busy_in(events) / _length(every, 0.0) for name, events in ipus.items()
        },
        "You count the ops as well. They are parts of the passes in the IPU's own row, so they count twice.": {
            name: busy / whole for name, busy in both.items()
        },
        "These are microseconds. Divide by the length of the step.": {
            name: busy_in(events) for name, events in ipus.items()
        },
        "These are percentages. Return shares from 0 to 1.": {
            name: 100 * busy_in(events) / whole for name, events in ipus.items()
        },
        "You count all but the waits. Before its first event and after its last, an IPU does nothing, either.": {
            name: 1 - (busy_in(events, waits=True) - busy_in(events)) / whole for name, events in ipus.items()
        },
        "This is the share in which each IPU waits.": {
            name: 1 - busy_in(events) / whole for name, events in ipus.items()
        },
    }
