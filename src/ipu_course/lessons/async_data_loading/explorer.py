"""Explorer of lesson 05: when a loader loads and the calls run, for loading times and modes of the learner's choice."""

from __future__ import annotations

from ipu_course.explorers import Choice, Control, Explorer, Slider, Switch, View
from ipu_course.lessons.async_data_loading.loading import Loading, bound, timeline
from ipu_course.lessons.async_data_loading.loading_figure import loading_timeline_figure

CALLS = 61  # its second half is a whole number of rounds of UNEVEN
SHOWN_CALLS = 6  # as many as fit with Sync
UNEVEN = (0.5, 0.5, 0.5, 0.5, 3.0)  # of the mean, which they keep
MODES = {"Sync": False, "Async": True}
CONTROLS: dict[str, Control] = {
    "asynchronous": Choice("mode", MODES, True),
    "load_ms": Slider("loading one call's data, ms", (20, 50, 100, 150, 200, 400, 800), 150),
    "call_ms": Slider("the call itself, ms", (20, 50, 100, 200, 400), 200),
    "workers": Slider("num_workers", (0, 1, 2, 4), 0),
    "buffer": Slider("buffer_size", (1, 2, 3, 5, 8), 3),
    "uneven": Switch("every fifth load takes six times as long as the others", False),
}


def waiting(load_ms: int, call_ms: int, workers: int, buffer: int, uneven: bool) -> float:
    """Return the share of the time for which the IPUs wait for data from an asynchronous loader."""
    computed = timeline(_loads(load_ms, uneven), call_ms / 1000, Loading(True, workers, buffer))
    return max(0.0, 1 - call_ms / 1000 / computed.seconds_per_call)


def _loads(load_ms: int, uneven: bool) -> list[float]:
    factors = UNEVEN if uneven else (1.0,)
    return [load_ms / 1000 * factors[number % len(factors)] for number in range(CALLS)]


def view(asynchronous: bool, load_ms: int, call_ms: int, workers: int, buffer: int, uneven: bool) -> View:
    """Draw the first calls on an axis of time, with the steady rate in the table."""
    loading = Loading(asynchronous, workers, buffer)
    load, call = load_ms / 1000, call_ms / 1000
    computed = timeline(_loads(load_ms, uneven), call, loading)
    name = "loader's worker" if workers else "loader" if asynchronous else "program loads"
    drawn = loading_timeline_figure(computed, name, "Loading and calls", SHOWN_CALLS * (load + call))
    seconds, closed = computed.seconds_per_call, bound(load, call, loading)
    waits = 1 - call / seconds
    row: dict[str, object] = {
        "calls per second": f"{1 / seconds:.2f}",
        "time per call": f"{1000 * seconds:.0f} ms",
        "closed form, even loads": f"{1000 * closed:.0f} ms",
        "IPUs wait for data": f"{max(0.0, waits):.0%}",
        "limited by": "loading" if waits > 0.01 else "the call",
    }
    words = (
        f"Loading takes {load_ms} ms a call on average, the call {call_ms} ms. In the steady state a call begins "
        f"every {1000 * seconds:.0f} ms, and the IPUs wait for data {row['IPUs wait for data']} of the time."
    )
    takeaway = f"The bottleneck is {row['limited by']}: a call every {1000 * seconds:.0f} ms."
    return View(drawn, takeaway, words, [row], _note(loading))


def _note(loading: Loading) -> str:
    if loading.asynchronous and not loading.runs_ahead:
        return "The only slot holds the data in use, so the loader cannot load ahead: this works like Sync."
    if not loading.asynchronous and loading.workers:
        return "PyTorch's workers load ahead with Sync, too: each of them keeps two batches ready."
    return ""


LOADING = Explorer(CONTROLS, view)
