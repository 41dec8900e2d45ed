"""Memory: what every tile holds, and what the fullest tile is filled with."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from ipu_model.profiling.data import IpuMemory, Profile
from ipu_model.report.breakdown import Category, categories, fullest_ipu, fullest_ipus
from ipu_model.report.figures import tiles
from ipu_model.report.figures.canvas import (
    SMALL,
    area,
    key,
    legend_below,
    new_figure,
    note_point,
    nothing_here,
    only_grid,
    style,
    without_marks,
    words,
)
from ipu_model.report.quantities import KIB, whole
from ipu_model.report.style import BLUE, DARK, INK, IPU_LOOKS, ORANGE, WHITE, Look

MOST_IPUS = len(IPU_LOOKS)
_BAR_INCHES = 0.135
_SHARED_HATCH = "////"


def memory_per_tile_figure(profile: Profile) -> Figure:
    """Return what each tile holds, tile after tile and IPU after IPU, and the limit.

    Areas are groups of categories at the moment when the IPU's fullest tile is fullest; the line is each tile at
    its own fullest. Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    with style():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        start = 0
        borders = []
        groups: set[str] = set()
        for place in places:
            memory = profile.memory[place]
            if all(len(category.tiles) == len(memory.tiles) for category in memory.categories):
                groups |= set(tiles.stacked_tiles(axes, memory, start, profile.memory.tile_bytes))
            else:
                _draw_tiles(axes, memory, start, profile.memory.tile_bytes)
            borders.append((start, len(memory.tiles), memory.ipu))
            start += len(memory.tiles)
        top = max(profile.memory.max_tile_bytes, profile.memory.tile_bytes) / KIB * 1.2
        axes.set(xlim=(0, max(1, start)), ylim=(0, top), ylabel="bytes of a tile (KiB)")
        _draw_limit(axes, profile.memory.tile_bytes, start)
        _name_ipus(axes, borders)
        _mark_fullest(axes, profile, borders)
        axes.set_title(f"{words(profile.name)}: memory of each tile at its fullest (modelled)")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        only_grid(axes, "y")
        legend_below(figure, tiles.keys(groups, above=bool(groups) and not profile.memory.fits))
    return figure


def memory_category_figure(profile: Profile) -> Figure:
    """Return what the fullest tile of each IPU is filled with, by category; hatched is what shares its place.

    Of more than four IPUs those with the fullest tiles are shown.
    """
    places = fullest_ipus(profile, MOST_IPUS)
    rows = [row for row in categories(profile) if any(row.bytes_on_fullest_tile)]
    with style():
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
