"""What a search for what fits found, for pages: the programs, and memory against throughput of all that was tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipu_model.predict.verdict import Verdict, close_band
from ipu_model.report.quantities import counted, percent, rate
from ipu_model.report.tables import Cell, Number, Table

if TYPE_CHECKING:
    from ipu_model.explore.candidates import Candidate, Fit
    from ipu_model.explore.fit_result import FitResult

_WIDTH, _HEIGHT = 900, 380
_LEFT, _BOTTOM = 90, 46
_WIDEST = 3.0
"""Settings that need more than this share of a tile are drawn at the right edge."""
_MOST_ROWS = 40
VERDICT_CLASSES = {Verdict.FITS: "good", Verdict.CLOSE: "close", Verdict.DOES_NOT_FIT: "bad"}


@dataclass(frozen=True)
class Mark:
    """One setting in the picture, in its coordinates; `label` is written on its left or right, `words` describe it."""

    x: float
    y: float
    verdict: str
    words: str
    label: str = ""


@dataclass(frozen=True)
class Tick:
    """A line across the picture and what it stands for."""

    at: float
    text: str


@dataclass(frozen=True)
class Frontier:
    """The picture: marks, the path through those that none beats, and the ticks of both axes."""

    marks: tuple[Mark, ...]
    path: str
    shares: tuple[Tick, ...]
    speeds: tuple[Tick, ...]
    full: float
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    bottom: int = _BOTTOM


@dataclass(frozen=True)
class Found:
    """A program that was found, as the page shows it."""

    title: str
    fit: Fit
    verdict: str
    speed: str
    details: str


def found_programs(result: FitResult) -> list[Found]:
    """Return the programs that the page shows: both that fit, or else the nearest and what fits without limits."""
    if result.fastest is not None and result.cheapest is not None:
        if result.fastest.candidate == result.cheapest.candidate:
            return [_shown("The fastest and the cheapest that fits", result.fastest)]
        return [_shown("The fastest that fits", result.fastest), _shown("The cheapest that fits", result.cheapest)]
    others = (("The nearest", result.nearest), ("Without the limits of the search", result.instead))
    return [_shown(title, fit) for title, fit in others if fit is not None]


def _shown(title: str, fit: Fit) -> Found:
    profile = fit.profile
    how = "captured again with these changes" if fit.is_confirmed else "derived from the captured program"
    details = (
        f"{counted(fit.candidate.ipus, 'IPU')} of {profile.machine.name}, "
        f"{percent(profile.memory.max_tile_bytes / profile.memory.tile_bytes)} of a tile; {how}"
    )
    return Found(title, fit, VERDICT_CLASSES[profile.verdict], rate(profile.samples_per_second, "samples/s"), details)


def _numbers_of(each: Candidate) -> str:
    """Return the memory and the speed of a candidate in words."""
    return (
        f"{percent(each.share)} of a tile, {rate(each.samples_per_second, 'samples/s')} on {counted(each.ipus, 'IPU')}"
    )


# --- the picture


def frontier_picture(result: FitResult) -> Frontier:
    """Return memory against throughput of everything that was modelled."""
    modelled = result.modelled
    most = max((each.samples_per_second for each in modelled), default=1.0) * 1.08 or 1.0
    widest = min(_WIDEST, 1.05 * max((each.share for each in modelled), default=1.0))
    widest = max(widest, 1.1)

    def x(share: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * min(share, widest) / widest

    def y(speed: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - speed / most) + 6

    names = {fit.candidate: name for name, fit in (("cheapest", result.cheapest), ("fastest", result.fastest)) if fit}
    marks = tuple(
        Mark(
            x(each.share),
            y(each.samples_per_second),
            VERDICT_CLASSES[each.verdict],
            _numbers_of(each),
            names.get(each, ""),
        )
        for each in modelled
    )
    return Frontier(
        marks=marks,
        path=_steps([(x(each.share), y(each.samples_per_second)) for each in result.frontier], x(widest)),
        shares=tuple(Tick(x(share), f"{share:.0%}") for share in _round_numbers(widest)),
        speeds=tuple(Tick(y(speed), f"{speed:,.4g}") for speed in _round_numbers(most)),
        full=x(1.0),
    )


def _steps(points: Sequence[tuple[float, float]], end: float) -> str:
    """Return the path along the frontier: what more memory gains stays gained."""
    if not points:
        return ""
    steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
    return f"M{points[0][0]:.1f} {points[0][1]:.1f}{steps}H{end:.1f}"


def _round_numbers(most: float) -> list[float]:
    """Return four to ten round numbers from 0 up to `most`."""
    step = 10.0 ** math.floor(math.log10(most / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 8)
    return [step * count for count in range(int(most / step) + 1)]


def described_picture(result: FitResult) -> str:
    """Return what the picture shows, in words."""
    low, high = close_band()
    fitting = sum(each.fits for each in result.modelled)
    return (
        f"Memory of the fullest tile against throughput: {counted(len(result.modelled), 'setting')}, of which "
        f"{fitting} {'fits' if fitting == 1 else 'fit'} for certain. Between {percent(low)} and {percent(high)} of a "
        "tile the model cannot tell. No setting beats those on the line in both. What needs more memory than the "
        "picture shows is at its right edge."
    )


def tried_table(result: FitResult) -> Table:
    """Return the settings on the frontier and the fastest others, the leanest first."""
    by_speed = sorted(result.modelled, key=lambda each: (not each.fits, -each.samples_per_second))
    shown = {*result.frontier, *by_speed[:_MOST_ROWS]}
    rows = [_row(each) for each in sorted(shown, key=lambda each: (each.share, -each.samples_per_second))]
    left_out = len(result.modelled) - len(rows)
    more = f"; {left_out} slower ones are left out" if left_out else ""
    head = ("verdict", "of a tile", "samples/s", "IPUs", "replicas", "micro-batch", "precision", "recomputation",
            "optimiser state", "memory proportion")  # fmt: skip
    return Table(f"Settings that were modelled{more}", head, rows)


def _row(each: Candidate) -> list[Cell]:
    setting = each.setting
    half = "float16" if setting.half else "as it is"
    state = [*(["float16"] if setting.half_state else []), *(["off chip"] if setting.off_chip else []),
             *(["sharded"] if setting.sharded else [])]  # fmt: skip
    return [
        str(each.verdict),
        Number(percent(each.share), each.share),
        Number(f"{each.samples_per_second:,.1f}", each.samples_per_second),
        Number(str(each.ipus), each.ipus),
        Number(str(setting.replicas), setting.replicas),
        Number(str(setting.micro_batch), setting.micro_batch),
        half + (", half partials" if setting.half_partials else ""),
        setting.recomputation.value + (", checkpoints" if setting.checkpoints else ""),
        ", ".join(state) or "as it is",
        "as it is" if setting.proportion is None else f"{setting.proportion:g}",
    ]
