"""Throughput against one knob of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from ipu_model.errors import Error
from ipu_model.predict.profile import Profile
from ipu_model.report.figures.canvas import in_style, new_figure, only_grid, words
from ipu_model.report.figures.style import LINE_STYLES
from ipu_model.report.looks import INK
from ipu_model.report.quantities import short

_WIDE_RANGE = 8
_LONGEST_LABEL = 90


@dataclass(frozen=True)
class ThroughputPoint:
    """One setting of the knob: device and end-to-end samples a second, and whether the program fits."""

    setting: float | str
    device: float
    end_to_end: float
    fits: bool = True

    @classmethod
    def of(cls, setting: float | str, profile: Profile) -> ThroughputPoint:
        """Return the point of a profile that was modelled with this setting."""
        return cls(setting, profile.device_samples_per_second, profile.samples_per_second, profile.fits)


def throughput_figure(
    points: Sequence[ThroughputPoint], knob: str, unit: str = "", *, chosen: float | str | None = None
) -> Figure:
    """Return throughput against the setting of a knob: a line for the device alone, one from end to end.

    `knob` and `unit` label the axis. Settings may be numbers or words; numbers that span a factor of eight or
    more get a logarithmic axis. Hollow points with a cross do not fit; `chosen` is a setting to mark.

    Raises:
        Error: no points, or settings of both kinds.
    """
    if not points:
        raise Error("A figure of throughput needs at least one point.")
    if len({isinstance(point.setting, str) for point in points}) > 1:
        raise Error(f"Settings of {knob} are numbers or words, not both: {[point.setting for point in points]}.")
    places = _places(points)
    with in_style():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        _draw_lines(axes, points, places)
        _mark_misfits(axes, points, places)
        if chosen is not None:
            _mark_chosen(axes, points, places, chosen)
        _label(axes, points, places, words(f"{knob} ({unit})" if unit else knob, _LONGEST_LABEL))
        axes.set_title(f"Throughput against {words(knob)} (modelled)")
        axes.legend(frameon=False, fontsize=9, loc="best")
    return figure


def _places(points: Sequence[ThroughputPoint]) -> list[float]:
    """Return where each point is on the axis: at its setting, or one after the other for words."""
    return [n if isinstance(point.setting, str) else point.setting for n, point in enumerate(points)]


def _draw_lines(axes: Axes, points: Sequence[ThroughputPoint], places: Sequence[float]) -> None:
    for name, rates, (colour, dashes, marker) in zip(
        ("device alone", "end to end"),
        ([point.device for point in points], [point.end_to_end for point in points]),
        LINE_STYLES,
    ):
        axes.plot(places, rates, color=colour, linestyle=dashes, marker=marker, linewidth=2, markersize=6, label=name)


def _mark_misfits(axes: Axes, points: Sequence[ThroughputPoint], places: Sequence[float]) -> None:
    misfits = [(place, point) for place, point in zip(places, points) if not point.fits]
    if not misfits:
        return
    at = [place for place, _ in misfits]
    label: str | None = "does not fit"
    for rates in ([point.device for _, point in misfits], [point.end_to_end for _, point in misfits]):
        axes.plot(at, rates, "o", markerfacecolor="none", markeredgecolor=INK, markersize=12, zorder=4)
        axes.plot(at, rates, "x", color=INK, markersize=6, zorder=5, label=label)
        label = None


def _mark_chosen(axes: Axes, points: Sequence[ThroughputPoint], places: Sequence[float], chosen: float | str) -> None:
    for place, point in zip(places, points):
        if point.setting == chosen:
            axes.axvline(place, color=INK, linestyle=":", linewidth=1.2, zorder=1)
            text = f"{short(point.end_to_end)} samples/s"
            axes.annotate(text, (place, point.end_to_end), (6, -12), textcoords="offset points", fontsize=9)


def _label(axes: Axes, points: Sequence[ThroughputPoint], places: Sequence[float], label: str) -> None:
    axes.set_xlabel(label)
    axes.set_ylabel("samples per second")
    axes.set_ylim(0, 1.12 * max(max(point.device, point.end_to_end) for point in points))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if min(places) > 0 and max(places) >= _WIDE_RANGE * min(places):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    texts = [words(p.setting) if isinstance(p.setting, str) else f"{p.setting:g}" for p in points]
    axes.set_xticks(list(places), texts)
    only_grid(axes, "y")
