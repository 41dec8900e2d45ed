"""Host and device over time: with more device iterations, the host's fixed work for a call is paid less often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from matplotlib.axes import Axes

from ipu_course.figures.board import SMALL, Drawing, chart, keys, without_frame
from ipu_course.figures.looks import CALL, COMPUTE, LOAD, WAIT, Look
from ipu_course.figures.style import INK, in_style

HALF_ROW = 0.36
WHITE_BELOW = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}


@dataclass(frozen=True)
class Stretch:
    """What the host ("loads", "call") or the device ("works") does for some time."""

    row: str
    kind: str
    start: float
    length: float

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.length


def round_trip_stretches(
    device_iterations: int, updates: int, *, load: float, call: float, device: float
) -> tuple[Stretch, ...]:
    """Return what host and device do one after the other, until the device has made ``updates`` weight updates.

    ``load`` and ``device`` are the times of one update, ``call`` that of one call. Raises ``ValueError`` where the
    device iterations do not divide the updates.
    """
    if device_iterations < 1 or updates % device_iterations:
        raise ValueError(f"{updates} updates are no whole number of calls with {device_iterations} device iterations")
    found: list[Stretch] = []
    now = 0.0
    for _ in range(updates // device_iterations):
        for row, kind, length in (("host", "loads", load * device_iterations), ("host", "call", call)):
            found.append(Stretch(row, kind, now, length))
            now += length
        for _ in range(device_iterations):
            found.append(Stretch("device", "works", now, device))
            now += device
    return tuple(found)


def round_trips(
    device_iterations: Sequence[int] = (1, 4),
    *,
    updates: int = 4,
    load: float = 0.4,
    call: float = 1.0,
    device: float = 1.0,
    unit: str = "",
) -> Drawing:
    """Draw host and device for each of ``device_iterations``, below each other on one time axis.

    ``load`` (preparing the samples) and ``device`` are the times of one update and ``call`` the host's fixed time of
    one call, all in ``unit``; without a unit they are an example and the axis carries no numbers.
    """
    every = [round_trip_stretches(n, updates, load=load, call=call, device=device) for n in device_iterations]
    longest = max(stretches[-1].end for stretches in every)
    with in_style():
        figure, axes = chart(1.1 + 1.05 * len(every))
        ticks: list[tuple[float, str]] = []
        for place, (iterations, stretches) in enumerate(zip(device_iterations, every)):
            top = 2.7 * place
            _draw(axes, stretches, top)
            ticks += [(top, "host"), (top + 0.85, "device")]
            title = f"{iterations} device iteration{'s' if iterations > 1 else ''} per call"
            axes.text(0, top - 0.5, title, fontweight="bold", va="bottom")
            axes.text(stretches[-1].end, top + 0.42, f"  {_done(stretches, unit)}", va="center", fontsize=SMALL)
        axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks])
        axes.set(xlim=(0, 1.16 * longest), ylim=(2.7 * len(every) - 1.3, -1.05))
        axes.set_xlabel(f"time ({unit})" if unit else "time")
        if not unit:
            axes.set_xticks([])
        without_frame(axes, "left")
        names = (("loads samples", LOAD), ("call: fixed work of the host", CALL), ("one update", COMPUTE))
        keys(figure, (*names, ("waits", WAIT)))
    return Drawing(figure, _words(device_iterations, every, updates, unit))


def _done(stretches: Sequence[Stretch], unit: str) -> str:
    return f"{stretches[-1].end:,.3g} {unit}" if unit else "done"


def _draw(axes: Axes, stretches: Sequence[Stretch], top: float) -> None:
    looks: dict[str, Look] = {"loads": LOAD, "call": CALL, "works": COMPUTE}
    for row in (top, top + 0.85):
        axes.barh(row, stretches[-1].end, height=2 * HALF_ROW, **WAIT.area())
    for each in stretches:
        row = top if each.row == "host" else top + 0.85
        axes.barh(row, each.length, left=each.start, height=2 * HALF_ROW, **looks[each.kind].area(0.8))
    axes.plot([stretches[-1].end] * 2, [top - 0.45, top + 1.3], color=INK, linestyle="--", linewidth=1.2)


def _words(device_iterations: Sequence[int], every: Sequence[Sequence[Stretch]], updates: int, unit: str) -> str:
    said = [f"Host and device over time until {updates} updates are made, on one time axis."]
    for iterations, stretches in zip(device_iterations, every):
        calls = sum(each.kind == "call" for each in stretches)
        end = f", done after {stretches[-1].end:,.3g} {unit}" if unit else ""
        said.append(
            f"With {iterations} device iteration{'s' if iterations > 1 else ''} there "
            f"{'is one call' if calls == 1 else f'are {calls} calls'} with the host's fixed work{end}."
        )
    shares = every[0][-1].end / every[-1][-1].end
    if len(every) > 1:
        said.append(f"The first takes {shares:.2f} times as long as the last, for the same updates.")
    return " ".join(said)
