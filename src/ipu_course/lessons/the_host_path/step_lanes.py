"""When host, link and IPU work: the steps in the middle of a call, on one axis of time."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course import engine, show
from ipu_course.figures.looks import COMPUTE, LINK, LOAD, Look
from ipu_course.figures.style import GREY, in_style, new_figure, only_grid, rows_named
from ipu_course.lessons.the_host_path.land_cover import (
    HostPath,
    StepParts,
    profile_path,
    step_milliseconds,
    step_parts,
)

HOST, LINK_LANE, IPU = "host", "link", "IPU"
LANES = (HOST, LINK_LANE, IPU)
COPY, IN, OUT, WORK = "copy", "in", "out", "compute"
LOOKS: dict[str, Look] = {COPY: LOAD, IN: LINK, OUT: LINK, WORK: COMPUTE}
KEYS = {"the host copies images into a buffer": LOAD, "images in, results out": LINK, "the IPU computes": COMPUTE}
STEPS = 3
LETTER = 0.55  # milliseconds that a letter is wide
UNTIL = 66.0  # milliseconds: three steps of the slowest setting
HALF_HIGH = 0.35  # of the distance between two lanes: half of a bar's height
FIRST = 5  # the number of the first micro-batch that is drawn


@dataclass(frozen=True)
class LaneBar:
    """What one lane does for one micro-batch, in milliseconds."""

    lane: str
    what: str
    micro_batch: int
    start: float
    end: float


def lane_bars(parts: StepParts, depth: int, overlaps: bool, steps: int = STEPS) -> tuple[LaneBar, ...]:
    """Return the bars of ``steps`` steps in the middle of a call.

    With ``depth`` above 1, the host copies while the link and the IPU work on the micro-batch before. When transfers
    overlap, the link brings the next images and takes the last results while the IPU computes.
    """
    bars: list[LaneBar] = []
    now = 0.0
    for number in range(FIRST, FIRST + steps):
        loaded = number + 1 if overlaps else number
        arrived = now + parts.images_in
        if depth > 1:
            bars.append(LaneBar(HOST, COPY, loaded + 1, now, now + parts.copy))
        else:
            bars.append(LaneBar(HOST, COPY, loaded, now, now + parts.copy))
            arrived += parts.copy
        bars.append(LaneBar(LINK_LANE, IN, loaded, arrived - parts.images_in, arrived))
        starts = now if overlaps else arrived
        computed = starts + parts.computing
        sent = (arrived if overlaps else computed) + parts.results_out
        bars.append(LaneBar(IPU, WORK, number, starts, computed))
        bars.append(LaneBar(LINK_LANE, OUT, number - 1 if overlaps else number, sent - parts.results_out, sent))
        now = max(sent, computed)
    return tuple(bars)


def step_in_the_middle(parts: StepParts, depth: int, overlaps: bool) -> float:
    """Return the milliseconds from one step to the next in the middle of a call."""
    bars = lane_bars(parts, depth, overlaps, steps=1)
    return max(bar.end for bar in bars if bar.lane != HOST)


@engine.needs_the_model
def lanes_figure(path: HostPath) -> Figure:
    """Draw the lanes of host, link and IPU; all settings have the same axis of time."""
    bars = lane_bars(step_parts(path), path.depth, path.io_tiles > 0, steps=20)
    with in_style():
        figure, axes = new_figure(2.5)
        for row in range(len(LANES)):
            axes.barh(row, UNTIL, height=2 * HALF_HIGH, color=GREY)
        for bar in bars:
            _draw(axes, bar)
        rows_named(axes, LANES)
        axes.set_xlim(0, UNTIL)
        axes.set(xlabel="milliseconds, from the start of a step in the middle of a call",
                 title="Host, link and IPU (modelled); numbers count micro-batches")  # fmt: skip
        only_grid(axes, "x")
        keys = [Patch(label=name, **look.area()) for name, look in KEYS.items()]
        figure.legend(handles=[*keys, Patch(facecolor=GREY, label="idle")], loc="outside lower center",
                      ncol=len(keys) + 1, frameon=False, fontsize=9)  # fmt: skip
    return figure


def _draw(axes: Axes, bar: LaneBar) -> None:
    end = min(bar.end, UNTIL)
    if end <= bar.start:
        return
    look = LOOKS[bar.what]
    axes.barh(LANES.index(bar.lane), end - bar.start, left=bar.start, height=2 * HALF_HIGH, **look.area())
    words = f"{bar.what} {bar.micro_batch}" if bar.lane == LINK_LANE else str(bar.micro_batch)
    middle, row = (bar.start + end) / 2, LANES.index(bar.lane)
    if end - bar.start > LETTER * len(words):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if look.hatch else None
        axes.text(middle, row, words, ha="center", va="center", fontsize=9, color=look.text, bbox=box)
    elif bar.lane == LINK_LANE and bar.end <= UNTIL:
        axes.text(middle, row - HALF_HIGH, words, ha="center", va="bottom", fontsize=7.5)


@engine.needs_the_model
def describe_lanes(path: HostPath) -> str:
    """Say with numbers what the lanes show."""
    parts = step_parts(path)
    when = "at the same time" if path.io_tiles else "one after another"
    ahead = "ahead of time" if path.depth > 1 else "while the link waits"
    return (
        f"Three rows over time, modelled. In each step the host copies images into a buffer for {parts.copy:.1f} ms, "
        f"{ahead}. The link brings images for {parts.images_in:.1f} ms and returns results for "
        f"{parts.results_out:.1f} ms, and the IPU computes for {parts.computing:.1f} ms, {when}. "
        f"A step takes {step_in_the_middle(parts, path.depth, path.io_tiles > 0):.1f} ms."
    )


def show_lanes(path: HostPath, takeaway: str) -> None:
    """Show the lanes of a setting, and print its step."""
    show.figure(lanes_figure(path), takeaway, describe_lanes(path))
    if engine.is_available():
        profile = profile_path(path)
        share = step_parts(path).computing / step_milliseconds(profile)
        print(f"A step takes {step_milliseconds(profile):.1f} ms (modelled, mean of a call); the IPU computes for "
              f"{share:.0%} of it.")  # fmt: skip
