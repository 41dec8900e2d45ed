"""How a run that failed is explained: which instance failed first, and how."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from popdist.run.frames import End
from popdist.topology import Instance

_HINTS = {
    signal.SIGKILL: "it was killed from outside, often because memory ran out",
    signal.SIGSEGV: "it crashed",
    signal.SIGABRT: "it crashed",
    signal.SIGBUS: "it crashed, often because shared memory ran out",
}


def choose_cause(ends: Sequence[End]) -> End:
    """Return the end that made the others end: those that only followed, or that were stopped, come last."""
    return min(ends, key=lambda end: (end.stopped, end.consequence, end.index))


def explain(instance: Instance, end: End) -> str:
    """Say which instance ended how; what it wrote is above."""
    if end.status >= 0:
        return f"{instance.description} ended with exit code {end.status}; what it wrote last is above"
    try:
        number = signal.Signals(-end.status)
    except ValueError:
        return f"{instance.description} was ended by signal {-end.status}"
    hint = _HINTS.get(number)
    return f"{instance.description} was ended by {number.name}" + (f": {hint}" if hint else "")
