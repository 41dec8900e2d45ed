"""Liveness: what is live on the fullest tile besides what always is, op after op."""

from __future__ import annotations

from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ipu_model.profiling.data import IpuMemory, LivenessStep, Profile
from ipu_model.report.breakdown import fullest_ipus
from ipu_model.report.figures.canvas import (
    key,
    legend_below,
    new_figure,
    note_point,
    nothing_here,
    only_grid,
    style,
    words,
)
from ipu_model.report.figures.memory import MOST_IPUS
from ipu_model.report.quantities import KIB, whole
from ipu_model.report.style import BLUE, HATCH, INK, WHITE, YELLOW, Look

_LIVE, _TEMPORARY = Look(BLUE), Look(YELLOW, "////", HATCH)
_LEAST_PHASE = 0.06  # of all steps, for its name to have room


def liveness_figure(profile: Profile) -> Figure:
    """Return the not-always-live bytes of each IPU's fullest tile while its ops run, and the room for them.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    with style():
        figure = new_figure(1.1 + 1.9 * len(places))
        every = figure.subplots(len(places), 1, squeeze=False)
        for axes, place in zip(every[:, 0], places):
            _draw_ipu(axes, profile.memory[place], profile.memory.tile_bytes)
        every[0, 0].set_title(
            f"{words(profile.name)}: live bytes of the fullest tile besides what always is (modelled)"
        )
        every[-1, 0].set_xlabel("op of one micro-batch, in the order in which they run")
        legend_below(figure, [
            key("live results and gradients", _LIVE), key("temporary data of the op", _TEMPORARY),
            Line2D([], [], color=INK, linestyle="--", label="room beside what is always live"),
        ])  # fmt: skip
    return figure


def _draw_ipu(axes: Axes, memory: IpuMemory, tile_bytes: int) -> None:
    axes.set_ylabel(f"IPU {memory.ipu}\nKiB")
    steps = memory.liveness
    if not steps:
        nothing_here(axes, "nothing lives for a part of the time only")
        return
    # A point more, so that the last step is as wide as the others.
    numbers = range(len(steps) + 1)
    total = [step.bytes_on_tile / KIB for step in (*steps, steps[-1])]
    live = [(step.bytes_on_tile - step.temporary_bytes) / KIB for step in (*steps, steps[-1])]
    axes.fill_between(numbers, live, step="post", color=_LIVE.face, linewidth=0)
    axes.fill_between(numbers, live, total, step="post", facecolor=_TEMPORARY.face, edgecolor=_TEMPORARY.edge,
                      hatch=_TEMPORARY.hatch, linewidth=0)  # fmt: skip
    room = (tile_bytes - memory.always_live_bytes) / KIB
    axes.axhline(room, color=INK, linestyle="--", linewidth=1.2)
    axes.set(xlim=(0, len(steps)), ylim=(0, 1.35 * max(room, *total, 1)))
    only_grid(axes, "y")
    _name_phases(axes, steps)
    _mark_peak(axes, steps, room)


def _name_phases(axes: Axes, steps: tuple[LivenessStep, ...]) -> None:
    at = 0
    for phase, group in groupby(steps, key=lambda step: step.phase):
        count = len(list(group))
        if at:
            axes.axvline(at, color=WHITE, linewidth=2)
            axes.axvline(at, color=INK, linestyle=":", linewidth=1)
        if count >= _LEAST_PHASE * len(steps):
            axes.text(at + count / 2, axes.get_ylim()[1] * 0.98, words(phase), ha="center", va="top", fontsize=9)
        at += count


def _mark_peak(axes: Axes, steps: tuple[LivenessStep, ...], room: float) -> None:
    peak = max(range(len(steps)), key=lambda index: steps[index].bytes_on_tile)
    point = (peak + 0.5, steps[peak].bytes_on_tile / KIB)
    axes.plot(*point, "D", color=WHITE, markeredgecolor=INK, markersize=5, zorder=5, clip_on=False)
    note_point(axes, point, f"{whole(steps[peak].bytes_on_tile)} bytes at {words(steps[peak].node)}", room)
