"""What a search for a program that fits found, for the page: programs, and a picture of memory against throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipu_model.report.quantities import percent, short

if TYPE_CHECKING:
    from ipu_model.explore.fit_result import Candidate, Fit, FitResult

_WIDTH, _HEIGHT = 900.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 20.0, 20.0, 40.0
_WIDEST = 3.0
"""Programs that need more than this share of a tile are drawn at the edge."""
_MARGIN = 1.08


@dataclass(frozen=True)
class Point:
    """One program that was tried: where it is in the picture, its verdict, a name, and what it is in words."""

    x: float
    y: float
    verdict: str
    name: str
    words: str


@dataclass(frozen=True)
class Frontier:
    """The picture: points, the line through those that none beats, ticks of both axes, and where a tile is full.

    `beyond` counts the points that need more memory than the right edge says.
    """

    points: tuple[Point, ...]
    beyond: int
    line: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    full: float


def named_fits(result: FitResult) -> tuple[tuple[str, Fit], ...]:
    """Return the programs that a search found, each once, with what each is best at."""
    found: list[tuple[str, Fit]] = []
    if result.fastest is not None and result.cheapest is not None:
        if result.fastest.candidate == result.cheapest.candidate:
            return (("The fastest and the cheapest that fits", result.fastest),)
        found += [("The fastest that fits", result.fastest), ("The cheapest that fits", result.cheapest)]
    elif result.nearest is not None:
        found.append(("Nothing fits for certain; the nearest", result.nearest))
    if result.instead is not None:
        found.append(("What fits without the limits of the search", result.instead))
    return tuple(found)


def frontier(result: FitResult) -> Frontier | None:
    """Return the picture of everything that was modelled; `None` if nothing was."""
    tried = result.modelled
    if not tried:
        return None
    widest = min(_WIDEST, max(each.share for each in tried) * _MARGIN)
    widest = max(widest, _MARGIN)
    fastest = max(each.samples_per_second for each in tried) * _MARGIN or 1.0
    names = {fit.candidate: name for name, fit in named_fits(result)}
    names.setdefault(result.start, "as it is")

    def x(share: float) -> float:
        return _LEFT + min(share, widest) / widest * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - rate / fastest * (_HEIGHT - _TOP - _BOTTOM)

    return Frontier(
        points=tuple(_point(each, x(each.share), y(each.samples_per_second), names.get(each, "")) for each in tried),
        beyond=sum(each.share > widest for each in tried),
        line="M" + "L".join(f"{x(each.share):.1f} {y(each.samples_per_second):.1f}" for each in result.frontier),
        across=tuple((x(share), f"{100 * share:g} %") for share in _ticks(widest)),
        up=tuple((y(rate), short(rate)) for rate in _ticks(fastest)),
        full=x(1.0),
    )


def _point(each: Candidate, x: float, y: float, name: str) -> Point:
    words = f"{short(each.samples_per_second)} samples/s, {percent(each.share)} of a tile: {each.verdict}"
    return Point(x, y, str(each.verdict), name, words)


def _ticks(most: float) -> Sequence[float]:
    """Return four or five round numbers from 0 to `most`."""
    power = 10.0 ** len(f"{int(most / 4)}") / 10 if most >= 4 else 1.0
    while most / power < 4:
        power /= 10
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if most / (factor * power) < 6)
    return [step * number for number in range(int(most / step) + 1)]
