"""What loaders take on this machine, beside what the rule of lesson 05 says for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from ipu_course import show
from ipu_course.lessons.async_data_loading.calls_timed import TimedCalls
from ipu_course.lessons.async_data_loading.loading import Loading, mean_seconds


@dataclass(frozen=True)
class MeasuredLoader:
    """Calls that were timed with one loader, whose loads repeat ``load_ms``; 0 ``slots`` stand for Sync."""

    load_ms: Sequence[float]
    slots: int
    timed: TimedCalls


def show_loaders(call_ms: float, loaders: Mapping[str, MeasuredLoader]) -> None:
    """Show the milliseconds from call to call of each loader, by the rule and measured; a call takes ``call_ms``."""
    show.table([_row(call_ms, name, measured) for name, measured in loaders.items()], index="loader")


def ruled_milliseconds(call_ms: float, measured: MeasuredLoader) -> float:
    """Return the milliseconds from call to call that follow from the loads, the call and the slots."""
    loading = Loading(asynchronous=measured.slots > 0, buffer=max(1, measured.slots))
    loads = [each / 1000 for each in measured.load_ms]
    return 1000 * mean_seconds(loads, call_ms / 1000, loading, measured.timed.calls)


def _row(call_ms: float, name: str, measured: MeasuredLoader) -> dict[str, object]:
    return {
        "loader": name,
        "by the rule, ms per call": f"{ruled_milliseconds(call_ms, measured):.0f}",
        "measured here, ms per call": f"{measured.timed.milliseconds:.0f}",
    }
