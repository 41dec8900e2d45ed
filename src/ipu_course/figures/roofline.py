"""A roofline: how fast a program can be, given how much it computes with each byte that it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ipu_course.figures.board import SMALL, TEXT, Drawing, chart
from ipu_course.figures.style import INK, LINE_STYLES, ORANGE, check_lines, in_style, only_grid

TERA, GIGA = 1e12, 1e9
HALO = withStroke(linewidth=3, foreground="white")
ALONE_WIDTH, ALONE_HALF_LENGTH = 3.5, 1.25  # points; a factor on the logarithmic axis


@dataclass(frozen=True)
class Roof:
    """What bytes come over, and how many a second."""

    name: str
    bytes_per_second: float


@dataclass(frozen=True)
class RooflinePoint:
    """A program or layer: operations for each byte moved, and how many a second it reaches, if that is known.

    ``alone_per_second`` is what its computing alone reaches, when no bytes have to be moved. ``roof`` is the one that
    its bytes come over, if they do not come over all of them.
    """

    name: str
    flops_per_byte: float
    flops_per_second: float | None = None
    alone_per_second: float | None = None
    roof: Roof | None = None


def attainable(flops_per_byte: float, roof: Roof, peak: float) -> float:
    """Return the most operations a second: the roof's slope up to the peak."""
    return min(peak, flops_per_byte * roof.bytes_per_second)


def roofline(
    points: Sequence[RooflinePoint], *, peak: float, roofs: Sequence[Roof], peak_name: str = "peak"
) -> Drawing:
    """Draw the peak (operations a second), a slope for each of at most 3 ``roofs``, and the named points.

    A point whose rate is not known stands on the first roof; a short line marks what a point reaches alone. Raises
    ``ValueError`` for no points and more roofs.
    """
    if not points:
        raise ValueError("a roofline needs at least one point")
    check_lines(len(roofs), len(LINE_STYLES))
    intensities = [point.flops_per_byte for point in points] + [peak / roof.bytes_per_second for roof in roofs]
    low, high = min(intensities) / 4, max(intensities) * 4
    with in_style():
        figure, axes = chart(3.9)
        for roof, (colour, dashes, _) in zip(roofs, LINE_STYLES):
            ridge = peak / roof.bytes_per_second
            heights = [attainable(x, roof, peak) / TERA for x in (low, ridge, high)]
            axes.plot([low, ridge, high], heights, color=colour, linestyle=dashes, linewidth=2.2,
                      label=f"{roof.name}: {_digits(roof.bytes_per_second / GIGA, 4)} GB/s")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=(low, high))
        for point in points:
            _draw_point(axes, point, roofs[0], peak)
        if any(point.alone_per_second for point in points):
            axes.plot([], [], color=INK, linewidth=ALONE_WIDTH, label="computing alone, no bytes moved")
        axes.axhline(peak / TERA, color=INK, linewidth=1.0)
        axes.text(
            low * 1.15, 1.12 * peak / TERA, f"{peak_name}: {_digits(peak / TERA)} TFLOP/s", va="bottom", fontsize=SMALL
        )
        axes.set_ylim(top=4 * peak / TERA)
        axes.set(xlabel="operations for each byte moved (FLOP per byte)", ylabel="TFLOP/s")
        only_grid(axes, "both")
        axes.legend(frameon=False, loc="lower right", fontsize=SMALL)
    return Drawing(figure, _words(points, peak, roofs))


def _draw_point(axes: Axes, point: RooflinePoint, roof: Roof, peak: float) -> None:
    reached = point.flops_per_second
    if point.alone_per_second is not None:
        ends = (point.flops_per_byte / ALONE_HALF_LENGTH, point.flops_per_byte * ALONE_HALF_LENGTH)
        axes.plot(ends, [point.alone_per_second / TERA] * 2, color=INK, linewidth=ALONE_WIDTH, zorder=4)
    height = (attainable(point.flops_per_byte, roof, peak) if reached is None else reached) / TERA
    fill = "white" if reached is None else ORANGE
    axes.plot(point.flops_per_byte, height, "o", markersize=8, color=ORANGE, markerfacecolor=fill, zorder=5)
    axes.annotate(point.name, (point.flops_per_byte, height), (9, -4), textcoords="offset points", fontsize=TEXT,
                  va="top", color=INK, zorder=6, path_effects=[HALO])  # fmt: skip


def _words(points: Sequence[RooflinePoint], peak: float, roofs: Sequence[Roof]) -> str:
    slopes = ", ".join(f"{roof.name} with {_digits(roof.bytes_per_second / GIGA, 4)} GB/s" for roof in roofs)
    parts = []
    for point in points:
        own_roofs = roofs if point.roof is None else (point.roof,)
        bound = min(attainable(point.flops_per_byte, roof, peak) for roof in own_roofs)
        reached = point.flops_per_second
        known = "" if reached is None else f" and reaches {_digits(reached / TERA)}"
        most = f"at most {_digits(bound / TERA)} TFLOP/s"
        own = "" if point.alone_per_second is None else f", computing alone {_digits(point.alone_per_second / TERA)}"
        parts.append(f"{point.name} has {_digits(point.flops_per_byte)} FLOP per byte, {most}{known}{own}")
    return (
        "A roofline: operations a second over operations per byte, both axes logarithmic. The flat roof is "
        f"{_digits(peak / TERA)} TFLOP/s; slopes: {slopes}. {'; '.join(parts)}."
    )


def _digits(value: float, digits: int = 3) -> str:
    """Write a number from 0.0001 up with at least ``digits`` significant digits and without an exponent."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"
