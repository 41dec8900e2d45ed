"""Memory: what every tile holds, what the fullest tile is filled with, what is live on it op after op."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from ipu_model.predict.profile import IpuMemory, Profile
from ipu_model.report.breakdown import MEMORY_GROUPS, Category, categories, fullest_ipu, fullest_ipus, memory_group
from ipu_model.report.figures import canvas
from ipu_model.report.looks import BLUE, DARK, INK, IPU_LOOKS, MEMORY_LOOKS, ORANGE, WHITE, Look
from ipu_model.report.quantities import KIB, whole

_MOST_IPUS = len(IPU_LOOKS)
_BAR_INCHES = 0.135
_SHARED_HATCH = "////"
_ABOVE = Look("none", "xxxx", DARK)
_LIVE, _TEMPORARY = MEMORY_LOOKS["activations"], MEMORY_LOOKS["temporary data"]
_NO_ROOM = "no room: what is always live already fills the tile"
_LEAST_PHASE = 0.06  # of all steps, for its name to have room
_LONGER = {"activations": "activations, gradients"}


@canvas.in_style()
def memory_per_tile_figure(profile: Profile) -> Figure:
    """Return what each tile holds, tile after tile and IPU after IPU, and the limit.

    Areas are groups of categories at the moment when the IPU's fullest tile is fullest; the line is each tile at
    its own fullest. Of more than four IPUs those with the fullest tiles are shown.
    """
    limit, fullest = profile.memory.tile_bytes, profile.memory[fullest_ipu(profile)]
    shown = [profile.memory[place] for place in fullest_ipus(profile, _MOST_IPUS)]
    starts = list(accumulate((len(memory.tiles) for memory in shown), initial=0))
    figure = canvas.new_figure(3.4)
    axes = figure.add_subplot()
    groups: set[str] = set()
    for memory, start in zip(shown, starts):
        groups |= _draw_tiles(axes, memory, start, limit)
    top = max(fullest.max_tile_bytes, limit) / KIB * 1.2
    axes.set(xlim=(0, max(1, starts[-1])), ylim=(0, top), ylabel="memory of a tile (KiB)")
    axes.axhline(limit / KIB, color=INK, linestyle="--", linewidth=1.4)
    # The box keeps the words readable where areas reach above the limit.
    box = {"facecolor": WHITE, "edgecolor": "none", "pad": 1.5}
    words: dict[str, Any] = {"textcoords": "offset points", "ha": "left", "va": "bottom", "fontsize": 9, "bbox": box}
    axes.annotate(f"limit: {whole(limit)} bytes ({limit / KIB:,.0f} KiB)", (0, limit / KIB), (5, 5), **words)
    for start in starts[1:-1]:
        canvas.border(axes, start, 2.5)
    middles = [start + (len(memory.tiles) - 1) / 2 for memory, start in zip(shown, starts)]
    names = [f"IPU {memory.ipu}, tiles 0 to {max(0, len(memory.tiles) - 1)}" for memory in shown]
    axes.set_xticks(middles, names)
    axes.tick_params(axis="x", length=0)
    point = (starts[shown.index(fullest)] + fullest.fullest_tile, fullest.max_tile_bytes / KIB)
    axes.plot(*point, "D", color=ORANGE, markeredgecolor=DARK, markersize=6, zorder=5, clip_on=False)
    text = f"fullest: {whole(fullest.max_tile_bytes)} bytes (tile {fullest.fullest_tile})"
    canvas.note_point(axes, point, text, limit / KIB)
    axes.set_title(f"{canvas.words(profile.name)}: memory of each tile at its fullest (modelled)")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    canvas.only_grid(axes, "y")
    keys = [canvas.key(_LONGER.get(name, name), MEMORY_LOOKS[name]) for name in MEMORY_GROUPS if name in groups]
    if groups and not profile.memory.fits:
        keys.append(canvas.key("above the limit", _ABOVE))
    canvas.legend_below(figure, keys)
    return figure


@canvas.in_style()
def memory_category_figure(profile: Profile) -> Figure:
    """Return what the fullest tile of each IPU is filled with, by category; hatched is what shares its place.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, _MOST_IPUS)
    rows = [row for row in categories(profile) if any(row.bytes_on_fullest_tile)]
    figure = canvas.new_figure(1.4 + max(1, len(rows)) * (0.12 + _BAR_INCHES * len(places)))
    axes = figure.add_subplot()
    axes.set_title(f"{canvas.words(profile.name)}: what the fullest tile holds (modelled)")
    if not rows:
        canvas.nothing_here(axes, "nothing is held")
        return figure
    _draw_categories(axes, rows, places)
    axes.set_yticks(range(len(rows)), [canvas.words(row.name) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("bytes of the fullest tile")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.margins(x=0.12)
    canvas.without_frame(axes)
    canvas.only_grid(axes, "x")
    keys = [canvas.key(f"IPU {profile.memory[place].ipu}", look) for place, look in zip(places, IPU_LOOKS)]
    if any(not c.always_live and c.bytes_on_fullest_tile for memory in profile.memory for c in memory.categories):
        keys.append(canvas.key("hatched: shares its place with other data over time", Look(WHITE, _SHARED_HATCH, DARK)))
    canvas.legend_below(figure, keys)
    return figure


@canvas.in_style()
def liveness_figure(profile: Profile) -> Figure:
    """Return the not-always-live bytes of each IPU's fullest tile while its ops run, and the room for them.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, _MOST_IPUS)
    figure = canvas.new_figure(1.1 + 1.9 * len(places))
    every = figure.subplots(len(places), 1, squeeze=False)
    for axes, place in zip(every[:, 0], places):
        _draw_liveness(axes, profile.memory[place], profile.memory.tile_bytes)
    every[0, 0].set_title(
        f"{canvas.words(profile.name)}: live bytes of the fullest tile besides what always is (modelled)"
    )
    every[-1, 0].set_xlabel("op of one micro-batch, in the order in which they run")
    keys = [canvas.key("live results and gradients", _LIVE), canvas.key("temporary data of the op", _TEMPORARY)]
    room = Line2D([], [], color=INK, linestyle="--", label="room beside what is always live")
    canvas.legend_below(figure, [*keys, room])
    return figure


def _draw_tiles(axes: Axes, memory: IpuMemory, start: int, limit: int) -> set[str]:
    """Draw what one IPU's tiles hold from `start` on, and return the groups of categories that are there.

    Where tiles are known by category, groups lie on top of each other, and the line above them is what each tile
    holds at its own fullest moment, which need not be that of the fullest tile. What is above the limit is hatched.
    """
    most = np.array(memory.tiles) / KIB
    numbers = np.arange(start, start + len(most))
    above: dict[str, Any] = {"where": (most > limit / KIB).tolist(), "step": "mid"}
    is_above = most.max(initial=0.0) > limit / KIB
    if any(len(category.tiles) != len(most) for category in memory.categories):
        axes.fill_between(numbers, most, step="mid", color=BLUE, linewidth=0)
        if is_above:
            axes.fill_between(numbers, most, limit / KIB, **above, **canvas.area(Look(ORANGE, "////", DARK), 0.0))
        return set()
    groups = {name: np.zeros(len(most)) for name in MEMORY_GROUPS}
    for category in memory.categories:
        groups[memory_group(category.name)] += np.array(category.tiles)
    groups = {name: held for name, held in groups.items() if held.any()}
    floor = np.zeros(len(most))
    for name, held in groups.items():
        top = floor + held / KIB
        axes.fill_between(numbers, top, floor, step="mid", **canvas.area(MEMORY_LOOKS[name], 0.0))
        floor = top
    axes.step(numbers, most, where="mid", color=INK, linewidth=0.8)
    if is_above:
        axes.fill_between(numbers, most, limit / KIB, **above, **canvas.area(_ABOVE, 0.0))
    return set(groups)


def _draw_categories(axes: Axes, rows: Sequence[Category], places: Sequence[int]) -> None:
    height = 0.84 / len(places)
    for bar, place in enumerate(places):
        for row, category in enumerate(rows):
            hatch = "" if category.always_live else _SHARED_HATCH
            look = Look(IPU_LOOKS[bar].face, hatch, WHITE if bar != 1 else DARK)
            count = category.bytes_on_fullest_tile[place]
            at = row + (bar - (len(places) - 1) / 2) * height
            axes.barh(at, count, height, **canvas.area(look))
            if count:
                words: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": canvas.SMALL}
                axes.annotate(whole(count), (count, at), (3, 0), **words)


def _draw_liveness(axes: Axes, memory: IpuMemory, tile_bytes: int) -> None:
    axes.set_ylabel(f"IPU {memory.ipu}\nKiB")
    steps = memory.liveness
    if not steps:
        canvas.nothing_here(axes, "nothing lives for a part of the time only")
        return
    # A point more, so that the last step is as wide as the others.
    numbers = range(len(steps) + 1)
    total = [step.bytes_on_tile / KIB for step in (*steps, steps[-1])]
    live = [(step.bytes_on_tile - step.temporary_bytes) / KIB for step in (*steps, steps[-1])]
    axes.fill_between(numbers, live, step="post", **canvas.area(_LIVE, 0.0))
    axes.fill_between(numbers, live, total, step="post", **canvas.area(_TEMPORARY, 0.0))
    room = (tile_bytes - memory.always_live_bytes) / KIB
    axes.axhline(room, color=INK, linestyle="--", linewidth=1.2)
    axes.set(xlim=(0, len(steps)), ylim=(0, 1.35 * max(room, *total, 1)))
    if room <= 0:
        axes.text(0.01, 0.7, _NO_ROOM, transform=axes.transAxes, fontsize=9)
    canvas.only_grid(axes, "y")
    at = 0
    for phase, group in groupby(steps, key=lambda step: step.phase):
        count = len(list(group))
        if at:
            canvas.border(axes, at, 2)
        if count >= _LEAST_PHASE * len(steps):
            axes.text(at + count / 2, axes.get_ylim()[1] * 0.98, canvas.words(phase), ha="center", va="top", fontsize=9)
        at += count
    peak = max(range(len(steps)), key=lambda index: steps[index].bytes_on_tile)
    point = (peak + 0.5, steps[peak].bytes_on_tile / KIB)
    axes.plot(*point, "D", color=WHITE, markeredgecolor=INK, markersize=5, zorder=5, clip_on=False)
    name = canvas.words(steps[peak].name or steps[peak].node)
    canvas.note_point(axes, point, f"{whole(steps[peak].bytes_on_tile)} bytes at {name}", room)
