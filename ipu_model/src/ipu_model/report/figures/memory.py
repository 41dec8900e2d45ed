"""Memory: what every tile holds, what the fullest tile is filled with, and what is live on it op after op."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from ipu_model.predict.profile import IpuMemory, LivenessStep, Profile
from ipu_model.report.breakdown import MEMORY_GROUPS, Category, categories, fullest_ipu, fullest_ipus, memory_group
from ipu_model.report.figures.canvas import (
    SMALL,
    area,
    in_style,
    key,
    legend_below,
    new_figure,
    note_point,
    nothing_here,
    only_grid,
    without_marks,
    words,
)
from ipu_model.report.looks import (
    BLUE,
    DARK,
    INK,
    IPU_LOOKS,
    MEMORY_LOOKS,
    ORANGE,
    OTHER_LOOK,
    WHITE,
    Look,
)
from ipu_model.report.quantities import KIB, whole

MOST_IPUS = len(IPU_LOOKS)
_BAR_INCHES = 0.135
_SHARED_HATCH = "////"
_ABOVE = Look("none", "xxxx", DARK)
_LIVE, _TEMPORARY = MEMORY_LOOKS["activations"], MEMORY_LOOKS["temporary data"]
_NO_ROOM = "no room: what is always live already fills the tile"
_LONGER = {"activations": "activations, gradients"}
_LEAST_PHASE = 0.06  # of all steps, for its name to have room


def memory_per_tile_figure(profile: Profile) -> Figure:
    """Return what each tile holds, tile after tile and IPU after IPU, and the limit.

    Areas are groups of categories at the moment when the IPU's fullest tile is fullest; the line is each tile at
    its own fullest. Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    with in_style():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        start = 0
        borders = []
        groups: set[str] = set()
        for place in places:
            memory = profile.memory[place]
            if all(len(category.tiles) == len(memory.tiles) for category in memory.categories):
                groups |= set(_stack_tiles(axes, memory, start, profile.memory.tile_bytes))
            else:
                _draw_tiles(axes, memory, start, profile.memory.tile_bytes)
            borders.append((start, len(memory.tiles), memory.ipu))
            start += len(memory.tiles)
        top = max(profile.memory.max_tile_bytes, profile.memory.tile_bytes) / KIB * 1.2
        axes.set(xlim=(0, max(1, start)), ylim=(0, top), ylabel="memory of a tile (KiB)")
        _draw_limit(axes, profile.memory.tile_bytes, start)
        _name_ipus(axes, borders)
        _mark_fullest(axes, profile, borders)
        axes.set_title(f"{words(profile.name)}: memory of each tile at its fullest (modelled)")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        only_grid(axes, "y")
        legend_below(figure, _group_keys(groups, above=bool(groups) and not profile.memory.fits))
    return figure


def memory_category_figure(profile: Profile) -> Figure:
    """Return what the fullest tile of each IPU is filled with, by category; hatched is what shares its place.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    rows = [row for row in categories(profile) if any(row.bytes_on_fullest_tile)]
    with in_style():
        figure = new_figure(1.4 + max(1, len(rows)) * (0.12 + _BAR_INCHES * len(places)))
        axes = figure.add_subplot()
        axes.set_title(f"{words(profile.name)}: what the fullest tile holds (modelled)")
        if not rows:
            nothing_here(axes, "nothing is held")
            return figure
        _draw_categories(axes, rows, places)
        axes.set_yticks(range(len(rows)), [words(row.name) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("bytes of the fullest tile")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.margins(x=0.12)
        without_marks(axes, ("left",))
        only_grid(axes, "x")
        _category_keys(figure, profile, places)
    return figure


def liveness_figure(profile: Profile) -> Figure:
    """Return the not-always-live bytes of each IPU's fullest tile while its ops run, and the room for them.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    with in_style():
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


def _draw_categories(axes: Axes, rows: list[Category], places: tuple[int, ...]) -> None:
    """Draw one bar for each category and IPU, with its number."""
    height = 0.84 / len(places)
    for bar, place in enumerate(places):
        for row, category in enumerate(rows):
            look = IPU_LOOKS[bar]
            hatched = Look(look.face, "" if category.always_live else _SHARED_HATCH, WHITE if bar != 1 else DARK)
            count = category.bytes_on_fullest_tile[place]
            at = row + (bar - (len(places) - 1) / 2) * height
            axes.barh(at, count, height, **area(hatched))
            if count:
                axes.annotate(
                    whole(count), (count, at), (3, 0), textcoords="offset points", va="center", fontsize=SMALL
                )


def _draw_tiles(axes: Axes, memory: IpuMemory, start: int, limit: int) -> None:
    """Fill the area below one IPU's tiles, and once more differently where they are above the limit."""
    held = [count / KIB for count in memory.tiles]
    numbers = range(start, start + len(held))
    axes.fill_between(numbers, held, step="mid", color=BLUE, linewidth=0)
    if memory.max_tile_bytes > limit:
        above = [count * KIB > limit for count in held]
        axes.fill_between(
            numbers, held, limit / KIB, where=above, step="mid", facecolor=ORANGE, edgecolor=DARK, hatch="////",
            linewidth=0,
        )  # fmt: skip


def _draw_limit(axes: Axes, limit: int, tiles: int) -> None:
    axes.axhline(limit / KIB, color=INK, linestyle="--", linewidth=1.4)
    text = f"limit: {whole(limit)} bytes ({limit / KIB:,.0f} KiB)"
    # The box keeps the words readable where areas reach above the limit.
    box = {"facecolor": WHITE, "edgecolor": "none", "pad": 1.5}
    place = (0, limit / KIB)
    axes.annotate(text, place, (5, 5), textcoords="offset points", ha="left", va="bottom", fontsize=9, bbox=box)


def _name_ipus(axes: Axes, borders: list[tuple[int, int, int]]) -> None:
    for start, _, _ in borders[1:]:
        axes.axvline(start, color=WHITE, linewidth=2.5)
        axes.axvline(start, color=INK, linestyle=":", linewidth=1)
    ticks, names = [], []
    for start, count, ipu in borders:
        ticks += [start + (count - 1) / 2]
        names += [f"IPU {ipu}, tiles 0 to {max(0, count - 1)}"]
    axes.set_xticks(ticks, names)
    axes.tick_params(axis="x", length=0)


def _mark_fullest(axes: Axes, profile: Profile, borders: list[tuple[int, int, int]]) -> None:
    memory = profile.memory[fullest_ipu(profile)]
    start = next(start for start, _, ipu in borders if ipu == memory.ipu)
    point = (start + memory.fullest_tile, memory.max_tile_bytes / KIB)
    axes.plot(*point, "D", color=ORANGE, markeredgecolor=DARK, markersize=6, zorder=5, clip_on=False)
    text = f"fullest: {whole(memory.max_tile_bytes)} bytes (tile {memory.fullest_tile})"
    note_point(axes, point, text, profile.memory.tile_bytes / KIB)


def _category_keys(figure: Figure, profile: Profile, places: tuple[int, ...]) -> None:
    keys = [key(f"IPU {profile.memory[place].ipu}", look) for place, look in zip(places, IPU_LOOKS)]
    shared = any(not c.always_live and c.bytes_on_fullest_tile for m in profile.memory for c in m.categories)
    if shared:
        keys.append(key("hatched: shares its place with other data over time", Look(WHITE, _SHARED_HATCH, DARK)))
    legend_below(figure, keys)


def _stack_tiles(axes: Axes, memory: IpuMemory, start: int, limit: int) -> list[str]:
    """Draw the groups of categories on each tile from `start` on, and return the names of those that are there.

    The line above them is what each tile holds at its own fullest moment, which need not be that of the fullest
    tile; hatched is what is above the limit.
    """
    groups = _groups(memory)
    numbers = np.arange(start, start + len(memory.tiles))
    floor = np.zeros(len(memory.tiles))
    for name, held in groups.items():
        top = floor + held / KIB
        axes.fill_between(numbers, top, floor, step="mid", **area(MEMORY_LOOKS.get(name, OTHER_LOOK), 0.0))
        floor = top
    most = np.array(memory.tiles) / KIB
    axes.step(numbers, most, where="mid", color=INK, linewidth=0.8)
    if most.max(initial=0.0) > limit / KIB:
        above = most > limit / KIB
        axes.fill_between(numbers, most, limit / KIB, where=above.tolist(), step="mid", **area(_ABOVE, 0.0))
    return list(groups)


def _group_keys(names: set[str], *, above: bool) -> list[Patch]:
    """Return the legend's entries for these groups, in the order in which they are drawn."""
    entries = [
        key(_LONGER.get(name, name), MEMORY_LOOKS.get(name, OTHER_LOOK)) for name in MEMORY_GROUPS if name in names
    ]
    return [*entries, key("above the limit", _ABOVE)] if above else entries


def _groups(memory: IpuMemory) -> Mapping[str, np.ndarray]:
    """Return the bytes of each group on every tile, in drawing order."""
    found = {name: np.zeros(len(memory.tiles)) for name in MEMORY_GROUPS}
    for category in memory.categories:
        found[memory_group(category.name)] += np.array(category.tiles)
    return {name: held for name, held in found.items() if held.any()}


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
    axes.fill_between(numbers, live, step="post", **area(_LIVE, 0.0))
    axes.fill_between(numbers, live, total, step="post", **area(_TEMPORARY, 0.0))
    room = (tile_bytes - memory.always_live_bytes) / KIB
    axes.axhline(room, color=INK, linestyle="--", linewidth=1.2)
    axes.set(xlim=(0, len(steps)), ylim=(0, 1.35 * max(room, *total, 1)))
    if room <= 0:
        axes.text(0.01, 0.7, _NO_ROOM, transform=axes.transAxes, fontsize=9)
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
    note_point(
        axes, point, f"{whole(steps[peak].bytes_on_tile)} bytes at {words(steps[peak].name or steps[peak].node)}", room
    )
