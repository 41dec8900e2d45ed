"""What runs when: the pipeline on the IPUs, the host beside the device, and what cycles are spent on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from matplotlib.ticker import PercentFormatter

from ipu_model.predict.profile import SPAN_KINDS, Profile, Span
from ipu_model.report.breakdown import DEVICE_WORKS, HOST_KINDS, Row, device_rows, host_rows, phases
from ipu_model.report.figures import canvas
from ipu_model.report.looks import INK, OTHER_LOOK, PHASE_LOOKS, SPAN_LOOKS
from ipu_model.report.quantities import duration, percent, time_unit

_REPEATS = "×n: n of them drawn together; really they take turns"
_HALF_ROW = 0.4
_ROW_INCHES = 0.46
_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "update": "update"}
_HOST_NAMES = {"load": "loads samples", "call": "in a call", DEVICE_WORKS: "works"}
_MOST_VECTOR_BARS = 2000
_NARROW_POINTS = 3.0
_AFTER_CALL = 0.12
_BREAK_POINTS = 3.0
_BREAK_SIGN = Path([(-0.9, -1.0), (-0.3, 1.0), (0.3, -1.0), (0.9, 1.0)], [Path.MOVETO, Path.LINETO] * 2)
_CYCLES_ROW_INCHES = 0.44
_LEAST_LABELLED = 0.055


@canvas.in_style()
def timeline_figure(profile: Profile) -> Figure:
    """Return what each IPU does during one call: a row each, a colour and hatching for each kind of work.

    Stretches that stand for n equal ones carry a break and "×n".
    """
    rows = device_rows(profile.timeline)
    kinds = {span.kind: span.kind for row in rows for span in row.spans}
    end = _end(rows)
    figure = _gantt(rows, end, kinds, "time since the device began")
    (axes,) = figure.axes
    axes.set_title(f"{canvas.words(profile.name)}: what the IPUs do in one call ({duration(end)}, modelled)")
    return figure


@canvas.in_style()
def host_device_figure(profile: Profile) -> Figure:
    """Return when the host loads, when it is in a call, and when the device works; a line ends the call."""
    rows = host_rows(profile.timeline)
    kinds = {span.kind: _HOST_NAMES.get(span.kind, span.kind) for row in rows for span in row.spans}
    end = max(_end(rows), profile.call_seconds) * (1 + _AFTER_CALL)
    figure = _gantt(rows, end, kinds, "time")
    (axes,) = figure.axes
    at = profile.call_seconds * time_unit(end)[1]
    axes.axvline(at, color=INK, linestyle="--", linewidth=1.2)
    axes.annotate("next call", (at, len(rows) - 0.5), (4, 2), textcoords="offset points", fontsize=9)
    every = duration(profile.call_seconds)
    axes.set_title(f"{canvas.words(profile.name)}: host and device, a call every {every} (modelled)")
    return figure


@canvas.in_style()
def cycles_figure(profile: Profile) -> Figure:
    """Return the shares of the phases in the cycles of one call: a bar for each IPU."""
    figure = canvas.new_figure(1.75 + _CYCLES_ROW_INCHES * len(profile.cycles))
    axes = figure.add_subplot()
    for ipu, cycles in enumerate(profile.cycles):
        left = 0.0
        for phase, spent in phases(profile).items():
            share = spent[ipu] / cycles.total if cycles.total else 0.0
            look = PHASE_LOOKS[phase]
            axes.barh(ipu, share, 0.8, left=left, **canvas.area(look))
            if share >= _LEAST_LABELLED:
                canvas.write_inside(axes, (left + share / 2, ipu), percent(share), look, fontsize=8.5)
            left += share
    axes.set_yticks(range(len(profile.cycles)), [f"IPU {ipu}" for ipu in range(len(profile.cycles))])
    axes.set(xlim=(0, 1), ylim=(len(profile.cycles) - 0.5, -0.5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of the cycles of one call")
    axes.set_title(f"{canvas.words(profile.name)}: what the IPUs spend their cycles on (modelled)")
    canvas.without_frame(axes)
    used = [phase for phase, spent in phases(profile).items() if any(spent)]
    canvas.legend_below(figure, [canvas.key(name, PHASE_LOOKS[name]) for name in used], columns=4)
    return figure


def _end(rows: Iterable[Row]) -> float:
    return max((row.spans[-1].end for row in rows if row.spans), default=0.0)


def _gantt(rows: Sequence[Row], end: float, kinds: Mapping[str, str], time: str) -> Figure:
    """Draw rows of spans up to `end`, in seconds; `kinds` gives kinds their names in the legend."""
    figure = canvas.new_figure(1.5 + _ROW_INCHES * max(1, len(rows)))
    axes = figure.add_subplot()
    if not rows or end <= 0:
        canvas.nothing_here(axes, "nothing was scheduled")
        return figure
    unit, factor = time_unit(end)
    points = canvas.PLOT_POINTS / end
    shown = [Row(row.name, tuple(s for s in row.spans if s.end > 0 and s.start < end)) for row in rows]
    as_picture = sum(len(row.spans) for row in shown) > _MOST_VECTOR_BARS
    for place, row in enumerate(shown):
        _draw_row(axes, row, place, factor, points, as_picture)
    axes.set_xlim(0, end * factor)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_yticks(range(len(rows)), [canvas.words(row.name) for row in rows])
    axes.set_xlabel(f"{time} ({unit})")
    canvas.without_frame(axes)
    axes.tick_params(axis="x", length=3)
    used = {span.kind for row in shown for span in row.spans}
    order = [kind for kind in SPAN_KINDS if kind in used] + sorted(used - set(SPAN_KINDS))
    keys: list[Any] = [canvas.key(canvas.words(kinds[kind]), SPAN_LOOKS.get(kind, OTHER_LOOK)) for kind in order]
    if any(span.repeats > 1 for row in shown for span in row.spans):
        look: Any = {"linestyle": "none", "marker": _BREAK_SIGN, "markersize": 8, "markeredgewidth": 1.6}
        keys.append(Line2D([], [], color=INK, label=_REPEATS, **look))
    canvas.legend_below(figure, keys)
    return figure


def _draw_row(axes: Axes, row: Row, place: int, factor: float, points: float, as_picture: bool) -> None:
    """Draw the spans of one row, with words where there is room; a second is `factor` units and `points` points long.

    A bar that stands for several is cut twice near its end, as where a drawing leaves something out.
    """
    by_kind: dict[tuple[str, bool], list[Rectangle]] = {}
    for span in row.spans:
        width, middle = span.seconds * points, (span.start + span.seconds / 2) * factor
        bar = Rectangle((span.start * factor, place - _HALF_ROW), span.seconds * factor, 2 * _HALF_ROW)
        by_kind.setdefault((span.kind, width < _NARROW_POINTS), []).append(bar)
        if span.repeats > 1 and width > 4 * _BREAK_POINTS:
            point = factor / points
            for cut in (2, 4):
                at, slant = span.end * factor - cut * _BREAK_POINTS * point, 1.2 * point
                line: dict[str, Any] = {"color": "white", "linewidth": 1.4, "solid_capstyle": "butt", "zorder": 4}
                axes.plot([at - slant, at + slant], [place + _HALF_ROW, place - _HALF_ROW], **line)
            middle -= 2 * _BREAK_POINTS * factor / points
            width -= 4 * _BREAK_POINTS
        text, look = _words_on(span), SPAN_LOOKS.get(span.kind, OTHER_LOOK)
        if text and (len(text) + 0.3) * canvas.CHARACTER_POINTS < width:
            canvas.write_inside(axes, (middle, place), text, look, fontsize=canvas.SMALL, clip_on=True, zorder=5)
    for (kind, narrow), bars in by_kind.items():
        look = SPAN_LOOKS.get(kind, OTHER_LOOK)
        bars_together = PatchCollection(bars, **canvas.area(look, 0.0 if narrow else 0.6))
        # Thousands of vector shapes would make a page slow; as a picture they cost the same as ten.
        bars_together.set_rasterized(as_picture)
        axes.add_collection(bars_together, autolim=False)


def _words_on(span: Span) -> str:
    """Return a letter with the number of the micro-batch, how many stretches it stands for, or how long it takes."""
    if span.kind in (*HOST_KINDS, DEVICE_WORKS):
        return duration(span.seconds)
    letter = _LETTERS.get(span.kind, "")
    if span.repeats > 1:
        return "" if span.kind == "wait" else f"{letter} ×{span.repeats}".strip()
    return f"{letter}{span.micro_batch + 1}" if span.micro_batch is not None and len(letter) == 1 else letter
