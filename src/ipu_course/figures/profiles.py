"""The figures of a profile, each with its description. ``engine.figure`` imports this where there is an IPU Model."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Callable, Iterable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from ipu_course.figures.looks import BLACK, COMPUTE, EXCHANGE, PURPLE, SYNC, WAIT, WHITE, Look
from ipu_course.figures.style import BLUE, GREEN, INK, ORANGE, STYLE, WIDTH_INCHES, YELLOW, new_figure, only_grid
from ipu_model.predict.profile import IpuMemory, Profile, Span
from ipu_model.report import breakdown, looks
from ipu_model.report.breakdown import MEMORY_GROUPS, Row
from ipu_model.report.findings import describe_memory_per_tile, describe_timeline, listed
from ipu_model.report.quantities import KIB, cut, duration, percent, time_unit, whole

SPAN_LOOKS = {kind: Look(*look) for kind, look in looks.SPAN_LOOKS.items()}
MEMORY_LOOKS = {group: Look(*look) for group, look in looks.MEMORY_LOOKS.items()}
OTHER_LOOK = Look(*looks.OTHER_LOOK)  # of kinds that are not known
PHASE_LOOKS = {
    "OnTileExecute": COMPUTE,
    "DoExchange": EXCHANGE,
    "GlobalExchange": Look(PURPLE, "||||", WHITE),
    "StreamCopyBegin": Look(WHITE, "----", GREEN),
    "StreamCopyMid": Look(GREEN, text=WHITE),
    "StreamCopyEnd": Look(WHITE, "////", GREEN),
    "InternalSync": SYNC,
    "ExternalSync": WAIT,
}
IPU_LOOKS = (Look(BLUE), Look(YELLOW), Look(GREEN), Look(ORANGE))  # of bars side by side
PLOT_POINTS = (WIDTH_INCHES - 1.2) * 72
"""About how many points an axis is wide, for deciding whether a text has room."""
CHARACTER_POINTS = 4.9
"""About how wide a character of the small size is."""
SMALL = 8
_MOST_NAMED = 4
_KEYS_A_ROW = 5
_LAST_LETTER = 0x500  # of Latin, Greek and Cyrillic
_LONGEST_NAME = 44
_NOTE_SHARE = 0.11  # of the height of axes, for a line of text above a point


# A decorator. A dollar sign in a name begins no formula.
_in_style = matplotlib.rc_context({**STYLE, "text.parse_math": False})


def words(text: object) -> str:
    """Return a text on one line, without characters that the font lacks."""
    line = " ".join(str(text).split())
    return cut("".join(c if ord(c) < _LAST_LETTER and c.isprintable() else "?" for c in line), _LONGEST_NAME)


def write_inside(axes: Axes, at: tuple[float, float], text: str, look: Look, **more: Any) -> None:
    """Write on an area; on a hatched one in a box, in the lighter of its two colours."""

    def lightness(colour: str) -> float:  # on grey paper, from 0 to 1 (weights of Rec. 709)
        red, green, blue = to_rgb(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    if look.hatch:
        lighter = max(look.face, look.edge, key=lightness)
        more["bbox"] = {"facecolor": lighter, "edgecolor": "none", "pad": 1.2}
    axes.text(*at, text, ha="center", va="center", color=look.text, **more)


def key(name: str, look: Look) -> Patch:
    """Return what stands for a look in a legend."""
    return Rectangle((0.0, 0.0), 1, 1, label=name, **{**look.area(), "edgecolor": look.edge if look.hatch else INK})


def legend_below(figure: Figure, keys: Iterable[Any], columns: int = _KEYS_A_ROW) -> None:
    """Put a legend below everything else, in rows of about the same length."""
    entries = list(keys)
    if entries:
        rows = -(-len(entries) // columns)
        even = -(-len(entries) // rows)
        figure.legend(handles=entries, loc="outside lower center", ncol=even, frameon=False, fontsize=9)


def without_frame(axes: Axes) -> None:
    """Take away the marks of both axes and the line on the left."""
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def note_point(axes: Axes, point: tuple[float, float], text: str, line: float) -> None:
    """Write `text` beside and above a point, clear of the horizontal line at `line`."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    at = line if point[1] <= line < point[1] + _NOTE_SHARE * (high - low) else point[1]
    goes_right = point[0] < left + 0.62 * (right - left)
    placed: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "fontsize": 9}
    side = "left" if goes_right else "right"
    axes.annotate(text, (point[0], at), (8 if goes_right else -8, 3), ha=side, **placed)


def nothing_here(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.set_xticks([])
    axes.set_yticks([])


# --- what runs when: the pipeline on the IPUs, the host beside the device, and what cycles are spent on

_REPEATS = "×n: n of them drawn together; really they take turns"
_HALF_ROW = 0.4
_ROW_INCHES = 0.46
_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "update": "update"}
_HOST_NAMES = {"load": "loads samples", "call": "in a call", breakdown.DEVICE_WORKS: "works"}
_MOST_VECTOR_BARS = 2000
_NARROW_POINTS = 3.0
_AFTER_CALL = 0.12
_BREAK_POINTS = 3.0
_BREAK_SIGN = Path([(-0.9, -1.0), (-0.3, 1.0), (0.3, -1.0), (0.9, 1.0)], [Path.MOVETO, Path.LINETO] * 2)
_CYCLES_ROW_INCHES = 0.44
_LEAST_LABELLED = 0.055


@_in_style
def timeline_figure(profile: Profile) -> Figure:
    """Return what each IPU does during one call: a row each; stretches for n equal ones have a break and "×n"."""
    rows = breakdown.device_rows(profile.timeline)
    kinds = {span.kind: span.kind for row in rows for span in row.spans}
    end = _end(rows)
    figure = _gantt(rows, end, kinds, "time since the device began")
    (axes,) = figure.axes
    axes.set_title(f"{words(profile.name)}: what the IPUs do in one call ({duration(end)}, modelled)")
    return figure


@_in_style
def host_device_figure(profile: Profile) -> Figure:
    """Return when the host loads, when it is in a call, and when the device works; a line ends the call."""
    rows = breakdown.host_rows(profile.timeline)
    kinds = {span.kind: _HOST_NAMES.get(span.kind, span.kind) for row in rows for span in row.spans}
    end = max(_end(rows), profile.call_seconds) * (1 + _AFTER_CALL)
    figure = _gantt(rows, end, kinds, "time")
    (axes,) = figure.axes
    at = profile.call_seconds * time_unit(end)[1]
    axes.axvline(at, color=INK, linestyle="--", linewidth=1.2)
    axes.annotate("next call", (at, len(rows) - 0.5), (4, 2), textcoords="offset points", fontsize=9)
    every = duration(profile.call_seconds)
    axes.set_title(f"{words(profile.name)}: host and device, a call every {every} (modelled)")
    return figure


@_in_style
def cycles_figure(profile: Profile) -> Figure:
    """Return the shares of the phases in the cycles of one call: a bar for each IPU."""
    figure, axes = new_figure(1.75 + _CYCLES_ROW_INCHES * len(profile.cycles))
    for ipu, cycles in enumerate(profile.cycles):
        left = 0.0
        for phase, spent in breakdown.phases(profile).items():
            share = spent[ipu] / cycles.total if cycles.total else 0.0
            look = PHASE_LOOKS[phase]
            axes.barh(ipu, share, 0.8, left=left, **look.area())
            if share >= _LEAST_LABELLED:
                write_inside(axes, (left + share / 2, ipu), percent(share), look, fontsize=8.5)
            left += share
    axes.set_yticks(range(len(profile.cycles)), [f"IPU {ipu}" for ipu in range(len(profile.cycles))])
    axes.set(xlim=(0, 1), ylim=(len(profile.cycles) - 0.5, -0.5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of the cycles of one call")
    axes.set_title(f"{words(profile.name)}: what the IPUs spend their cycles on (modelled)")
    without_frame(axes)
    used = [phase for phase, spent in breakdown.phases(profile).items() if any(spent)]
    legend_below(figure, [key(name, PHASE_LOOKS[name]) for name in used], columns=4)
    return figure


def _end(rows: Iterable[Row]) -> float:
    return max((row.spans[-1].end for row in rows if row.spans), default=0.0)


def _gantt(rows: Sequence[Row], end: float, kinds: Mapping[str, str], time: str) -> Figure:
    """Draw rows of spans up to `end`, in seconds; `kinds` gives kinds their names in the legend."""
    figure, axes = new_figure(1.5 + _ROW_INCHES * max(1, len(rows)))
    if not rows or end <= 0:
        nothing_here(axes, "nothing was scheduled")
        return figure
    unit, factor = time_unit(end)
    points = PLOT_POINTS / end
    shown = [Row(row.name, tuple(s for s in row.spans if s.end > 0 and s.start < end)) for row in rows]
    as_picture = sum(len(row.spans) for row in shown) > _MOST_VECTOR_BARS
    for place, row in enumerate(shown):
        _draw_row(axes, row, place, factor, points, as_picture)
    axes.set_xlim(0, end * factor)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_yticks(range(len(rows)), [words(row.name) for row in rows])
    axes.set_xlabel(f"{time} ({unit})")
    without_frame(axes)
    axes.tick_params(axis="x", length=3)
    looks_of = {kind: SPAN_LOOKS.get(kind, OTHER_LOOK) for kind in breakdown.kinds_of(shown)}
    keys: list[Any] = [key(words(kinds[kind]), look) for kind, look in looks_of.items()]
    if any(span.repeats > 1 for row in shown for span in row.spans):
        look: Any = {"linestyle": "none", "marker": _BREAK_SIGN, "markersize": 8, "markeredgewidth": 1.6}
        keys.append(Line2D([], [], color=INK, label=_REPEATS, **look))
    legend_below(figure, keys)
    return figure


def _draw_row(axes: Axes, row: Row, place: int, factor: float, points: float, as_picture: bool) -> None:
    """Draw one row, with words where there is room; a second is `factor` units and `points` points long."""
    by_kind: dict[tuple[str, bool], list[Rectangle]] = {}
    for span in row.spans:
        width, middle = span.seconds * points, (span.start + span.seconds / 2) * factor
        bar = Rectangle((span.start * factor, place - _HALF_ROW), span.seconds * factor, 2 * _HALF_ROW)
        by_kind.setdefault((span.kind, width < _NARROW_POINTS), []).append(bar)
        if span.repeats > 1 and width > 4 * _BREAK_POINTS:
            point = factor / points
            for back in (2, 4):
                at, slant = span.end * factor - back * _BREAK_POINTS * point, 1.2 * point
                line: dict[str, Any] = {"color": "white", "linewidth": 1.4, "solid_capstyle": "butt", "zorder": 4}
                axes.plot([at - slant, at + slant], [place + _HALF_ROW, place - _HALF_ROW], **line)
            middle -= 2 * _BREAK_POINTS * factor / points
            width -= 4 * _BREAK_POINTS
        text, look = _words_on(span), SPAN_LOOKS.get(span.kind, OTHER_LOOK)
        if text and (len(text) + 0.3) * CHARACTER_POINTS < width:
            write_inside(axes, (middle, place), text, look, fontsize=SMALL, clip_on=True, zorder=5)
    for (kind, narrow), bars in by_kind.items():
        look = SPAN_LOOKS.get(kind, OTHER_LOOK)
        bars_together = PatchCollection(bars, **look.area(0.0 if narrow else 0.6))
        # Thousands of vector shapes would make a page slow; as a picture they cost the same as ten.
        bars_together.set_rasterized(as_picture)
        axes.add_collection(bars_together, autolim=False)


def _words_on(span: Span) -> str:
    """Return a letter with the number of the micro-batch, how many stretches it stands for, or how long it takes."""
    if span.kind in (*breakdown.HOST_KINDS, breakdown.DEVICE_WORKS):
        return duration(span.seconds)
    letter = _LETTERS.get(span.kind, "")
    if span.repeats > 1:
        return "" if span.kind == "wait" else f"{letter} ×{span.repeats}".strip()
    return f"{letter}{span.micro_batch + 1}" if span.micro_batch is not None and len(letter) == 1 else letter


# --- memory: of every tile, and of the fullest tile by category

_MOST_IPUS = len(IPU_LOOKS)
_BAR_INCHES = 0.135
_SHARED_HATCH = "////"
_ABOVE = Look("none", "xxxx", BLACK)
_LONGER = {"activations": "activations, gradients"}


@_in_style
def memory_per_tile_figure(profile: Profile) -> Figure:
    """Return what each tile of at most four IPUs holds at the peak, its own most as a line, and the limit."""
    limit, fullest = profile.memory.tile_bytes, profile.memory.fullest
    shown = [profile.memory[place] for place in breakdown.fullest_ipus(profile, _MOST_IPUS)]
    starts = list(accumulate((len(memory.tiles) for memory in shown), initial=0))
    figure, axes = new_figure(3.4)
    groups: set[str] = set()
    for memory, start in zip(shown, starts):
        groups |= _draw_tiles(axes, memory, start, limit)
    top = max(fullest.max_tile_bytes, limit) / KIB * 1.2
    axes.set(xlim=(0, max(1, starts[-1])), ylim=(0, top), ylabel="memory of a tile (KiB)")
    axes.axhline(limit / KIB, color=INK, linestyle="--", linewidth=1.4)
    # The box keeps the words readable where areas reach above the limit.
    box = {"facecolor": WHITE, "edgecolor": "none", "pad": 1.5}
    placed: dict[str, Any] = {"textcoords": "offset points", "ha": "left", "va": "bottom", "fontsize": 9, "bbox": box}
    axes.annotate(f"limit: {whole(limit)} bytes ({limit / KIB:,.0f} KiB)", (0, limit / KIB), (5, 5), **placed)
    for start in starts[1:-1]:
        axes.axvline(start, color="white", linewidth=2.5)
        axes.axvline(start, color=INK, linestyle=":", linewidth=1)
    middles = [start + (len(memory.tiles) - 1) / 2 for memory, start in zip(shown, starts)]
    names = [f"IPU {memory.ipu}, tiles 0 to {max(0, len(memory.tiles) - 1)}" for memory in shown]
    axes.set_xticks(middles, names)
    axes.tick_params(axis="x", length=0)
    point = (starts[shown.index(fullest)] + fullest.fullest_tile, fullest.max_tile_bytes / KIB)
    axes.plot(*point, "D", color=ORANGE, markeredgecolor=BLACK, markersize=6, zorder=5, clip_on=False)
    text = f"fullest: {whole(fullest.max_tile_bytes)} bytes (tile {fullest.fullest_tile})"
    note_point(axes, point, text, limit / KIB)
    axes.set_title(f"{words(profile.name)}: memory of each tile at its fullest (modelled)")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    only_grid(axes, "y")
    keys = [key(_LONGER.get(name, name), MEMORY_LOOKS[name]) for name in MEMORY_GROUPS if name in groups]
    if groups and not profile.memory.fits:
        keys.append(key("above the limit", _ABOVE))
    legend_below(figure, keys)
    return figure


@_in_style
def memory_category_figure(profile: Profile) -> Figure:
    """Return what fills the fullest tile of at most four IPUs, by category; hatched is what shares its place."""
    places = breakdown.fullest_ipus(profile, _MOST_IPUS)
    rows = [row for row in breakdown.categories(profile) if any(row.bytes_on_fullest_tile)]
    figure, axes = new_figure(1.4 + max(1, len(rows)) * (0.12 + _BAR_INCHES * len(places)))
    axes.set_title(f"{words(profile.name)}: what the fullest tile holds (modelled)")
    if not rows:
        nothing_here(axes, "nothing is held")
        return figure
    height = 0.84 / len(places)
    for bar, place in enumerate(places):
        for row, category in enumerate(rows):
            hatch = "" if category.always_live else _SHARED_HATCH
            look = Look(IPU_LOOKS[bar].face, hatch, WHITE if bar != 1 else BLACK)
            count = category.bytes_on_fullest_tile[place]
            at = row + (bar - (len(places) - 1) / 2) * height
            axes.barh(at, count, height, **look.area())
            if count:
                axes.annotate(
                    whole(count), (count, at), (3, 0), textcoords="offset points", va="center", fontsize=SMALL
                )
    axes.set_yticks(range(len(rows)), [words(row.name) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("bytes of the fullest tile")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.margins(x=0.12)
    without_frame(axes)
    only_grid(axes, "x")
    keys = [key(f"IPU {profile.memory[place].ipu}", look) for place, look in zip(places, IPU_LOOKS)]
    if any(not c.always_live and c.bytes_on_fullest_tile for memory in profile.memory for c in memory.categories):
        keys.append(key("hatched: shares its place with other data over time", Look(WHITE, _SHARED_HATCH, BLACK)))
    legend_below(figure, keys)
    return figure


def _draw_tiles(axes: Axes, memory: IpuMemory, start: int, limit: int) -> set[str]:
    """Draw one IPU's tiles at the peak, each tile's own most as a line; return the groups that are there."""
    most = np.array(memory.tiles) / KIB
    numbers = np.arange(start, start + len(most))
    above: dict[str, Any] = {"where": (most > limit / KIB).tolist(), "step": "mid"}
    is_above = most.max(initial=0.0) > limit / KIB
    groups = {name: np.array(held) for name, held in breakdown.tiles_by_group(memory).items() if any(held)}
    if not groups:
        axes.fill_between(numbers, most, step="mid", color=BLUE, linewidth=0)
        if is_above:
            axes.fill_between(numbers, most, limit / KIB, **above, **Look(ORANGE, "////", BLACK).area(0.0))
        return set()
    floor = np.zeros(len(most))
    for name, held in groups.items():
        top = floor + held / KIB
        axes.fill_between(numbers, top, floor, step="mid", **MEMORY_LOOKS[name].area(0.0))
        floor = top
    axes.step(numbers, most, where="mid", color=INK, linewidth=0.8)
    if is_above:
        axes.fill_between(numbers, most, limit / KIB, **above, **_ABOVE.area(0.0))
    return set(groups)


# --- what the descriptions say


def describe_host_device(profile: Profile) -> str:
    """Say when the host and the device work."""
    names = {"load": "loading", "call": "a call on the host", breakdown.DEVICE_WORKS: "the device's work"}
    parts = [
        f"{names.get(span.kind, span.kind)} from {duration(span.start)} to {duration(span.end)}"
        for row in breakdown.host_rows(profile.timeline)
        for span in row.spans
    ]
    return (
        f"Host and device in one call: {listed(parts[:_MOST_NAMED], len(parts))}. "
        f"The next call starts {duration(profile.call_seconds)} after this one."
    )


def describe_memory_categories(profile: Profile) -> str:
    """Say what the fullest tiles hold most of."""
    largest = [
        f"{category.name} with up to {whole(max(category.bytes_on_fullest_tile))} bytes"
        for category in breakdown.categories(profile)[:3]
    ]
    return f"What the fullest tile of each IPU holds; the most is {', then '.join(largest) or 'nothing'}."


def describe_cycles(profile: Profile) -> str:
    """Say how much of the cycles is computation, and what else takes most."""
    shown = enumerate(profile.cycles[:_MOST_NAMED])
    shares = [f"{percent(breakdown.compute_share(cycles))} on IPU {ipu}" for ipu, cycles in shown]
    (_, *others) = breakdown.phases(profile).items()
    most, _ = max(others, key=lambda phase: sum(phase[1]))
    return (
        f"OnTileExecute takes {listed(shares, len(profile.cycles))} of the cycles of one call. "
        f"Of all else, {most} takes most."
    )


FIGURES: Mapping[str, tuple[Callable[[Profile], Figure], Callable[[Profile], str]]] = {
    "memory": (memory_category_figure, describe_memory_categories),
    "memory per tile": (memory_per_tile_figure, describe_memory_per_tile),
    "timeline": (timeline_figure, describe_timeline),
    "host and device": (host_device_figure, describe_host_device),
    "cycles": (cycles_figure, describe_cycles),
}
"""What draws each figure of a profile, and what describes it."""
