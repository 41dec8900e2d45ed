"""How things are timed, and what a line of the table holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure beside its budget; `within` is `None` where there is none."""

    what: str
    figure: str
    budget: str = ""
    within: bool | None = None

    @classmethod
    def ratio(cls, what: str, value: float, *, at_most: float) -> Row:
        """A ratio that should not be above `at_most`."""
        return cls(what, f"{value:.2f}x", f"budget at most {at_most:g}x", value <= at_most)

    @classmethod
    def seconds(cls, what: str, value: float, *, at_most: float) -> Row:
        """Seconds that should not be above `at_most`."""
        return cls(what, f"{value:.2f} s", f"budget at most {at_most:g} s", value <= at_most)


def medians(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each action, run in turns so that a busy machine slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name].append(elapsed(action))
    return {name: statistics.median(values) for name, values in seconds.items()}


def elapsed(action: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
