"""Traces of host and device on one axis of time: what loads, what calls and what computes when."""

from __future__ import annotations

from typing import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course import engine, ladder, show
from ipu_course.call_parts import CallParts, call_parts
from ipu_course.engine import ModelledModule
from ipu_course.figures.looks import CALL, COMPUTE, LOAD, WAIT, Look
from ipu_course.figures.style import in_style, new_figure
from ipu_course.lessons.async_data_loading.loading import Loading, timeline

ROWS = {"loading": LOAD, "call on the host": CALL, "IPUs": COMPUTE}
MILLISECONDS = 1000.0
WORKERS = 4


@engine.needs_the_model
def three_traces(program: ModelledModule) -> dict[str, CallParts]:
    """Return the parts of a call for three settings of the workshop's program, called A, B and C."""
    fast, slow = (ladder.host(eight_bit_io=quick, asynchronous=True, workers=WORKERS) for quick in (True, False))
    profiles = {
        "A": program.profile(host=slow),
        "B": program.profile(host=fast),
        "C": program.profile(host=fast, gradient_accumulation=3, device_iterations=1),
    }
    return {name: call_parts(profile) for name, profile in profiles.items()}


def bottleneck(parts: CallParts) -> str:
    """Return what limits a program that loads ahead: "loading", "calls" (on the host) or "IPUs"."""
    if parts.load > parts.rest:
        return "loading"
    return "calls" if parts.call > parts.device else "IPUs"


def show_traces(programs: Mapping[str, CallParts], until: float, title: str, takeaway: str) -> None:
    """Show the rows of each program on one axis that ends after ``until`` seconds."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    show.figure(traces_figure(programs, until, title), takeaway, traces_description(programs, until))


def traces_description(programs: Mapping[str, CallParts], until: float) -> str:
    """Return the figure in words: how long each kind of work takes, and how often a call starts."""
    told = (
        f"{name}: loading for {_ms(parts.load)}, then a call of {_ms(parts.call)} on the host and {_ms(parts.device)} "
        f"on the IPUs; loading goes on {'during the calls' if parts.overlaps else 'only after the call'}, and a call "
        f"starts every {_ms(parts.total)}."
        for name, parts in programs.items()
    )
    return f"Three rows for each program over {until:g} s: loading, call on the host, IPUs. {' '.join(told)}"


def traces_figure(programs: Mapping[str, CallParts], until: float, title: str) -> Figure:
    """Draw three rows for each program, all on one axis that ends after ``until`` seconds. Grey is waiting."""
    with in_style():
        figure, axes = new_figure(1.2 + 0.95 * len(programs))
        names: list[tuple[float, str]] = []
        for number, (name, parts) in enumerate(programs.items()):
            first = 3.6 * number
            names += [(first + place, f"{name}: {row}") for place, row in enumerate(ROWS)]
            _draw(axes, first, parts, until)
        axes.set_yticks([place for place, _ in names], [name for _, name in names])
        axes.set(xlim=(0, until * MILLISECONDS), ylim=(names[-1][0] + 0.6, -0.6), xlabel="milliseconds", title=title)
        axes.tick_params(axis="y", length=0)
        keys = [Patch(label=row, **look.area()) for row, look in ROWS.items()]
        keys.append(Patch(label="waits", **WAIT.area()))
        figure.legend(handles=keys, loc="outside lower center", ncol=len(keys), frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, first: float, parts: CallParts, until: float) -> None:
    for place in range(len(ROWS)):
        _bar(axes, first + place, 0.0, until, WAIT)
    calls = 2 + int(until / parts.total)
    run = timeline([parts.load] * calls, parts.rest, Loading(parts.overlaps))
    for load in run.loads:
        _bar(axes, first, load.start, min(load.end, until), LOAD)
    for call in run.calls:
        device = call.start + parts.call
        _bar(axes, first + 1, call.start, min(device, until), CALL)
        _bar(axes, first + 2, device, min(call.end, until), COMPUTE)


def _ms(seconds: float) -> str:
    return f"{MILLISECONDS * seconds:.0f} ms"


def _bar(axes: Axes, place: float, start: float, end: float, look: Look) -> None:
    if end > start:
        axes.barh(place, (end - start) * MILLISECONDS, 0.8, left=start * MILLISECONDS, **look.area())
