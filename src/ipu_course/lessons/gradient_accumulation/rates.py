"""How near gradient accumulation brings a pipeline to its highest rate: counted, modelled and published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.figures.curves import curves_figure
from ipu_course.schedule import pipelined

if TYPE_CHECKING:
    from ipu_course.engine import Profile

SHOWN_IN_TABLE = (3, 5, 8, 12, 32, 64)  # exercise 3's answer lies between two of them
COUNTED, BY_TIME, MODELLED = "formula: m / (m + 2)", "formula for time: m / (m + 1)", "IPU Model"


def share_of_highest_rate(cycles: Mapping[int, float]) -> dict[int, float]:
    """Shares of the highest rate from ``cycles``: a call's cycles for each of two or more accumulations.

    The cycles of one more micro-batch, ``c``, are the slope between the smallest and the largest accumulation.
    No program is faster than one micro-batch in ``c``, so ``m`` micro-batches in ``C`` cycles reach ``m c / C``.
    Raises ``ValueError`` for fewer than two accumulations.
    """
    if len(cycles) < 2:
        raise ValueError("two accumulations are needed to know the cycles of one more micro-batch")
    least, most = min(cycles), max(cycles)
    each = (cycles[most] - cycles[least]) / (most - least)
    return {accumulation: accumulation * each / whole for accumulation, whole in cycles.items()}


def show_rates(profiles: Mapping[int, Profile | None], highest: float, published: Mapping[int, float]) -> None:
    """Show what share of their ``highest`` rate two IPUs reach, by accumulation: a figure and a table.

    ``highest`` is in images a second; ``published`` are shares of hardware. ``profiles`` is empty, and nothing is
    shown but a line, where there is no IPU Model.
    """
    known = {accumulation: profile for accumulation, profile in profiles.items() if profile}
    if not known:
        print(engine.NOT_HERE)
        return
    modelled = [profile.device_samples_per_second / highest for profile in known.values()]
    counted = [pipelined(2, accumulation).utilisation for accumulation in known]
    timed = [pipelined(2, accumulation).busy_share(backward=2.0) for accumulation in known]
    drawn = curves_figure(
        list(known),
        {MODELLED: modelled, BY_TIME: timed, COUNTED: counted},
        "gradient accumulation m (micro-batches in a weight update)",
        "share of the highest rate",
        "The first few micro-batches gain most",
        log_x=True,
        percent=True,
        marked={f"{share:.1%}": (accumulation, share) for accumulation, share in published.items()},
    )
    for text in drawn.axes[0].texts:  # above the points, clear of the line that rises to their right
        text.set(position=(0, 9), horizontalalignment="center")
    first, last = min(known), max(known)
    words = (
        f"Share of the highest rate against accumulation {first} to {last}. Modelled, from {modelled[0]:.1%} to "
        f"{modelled[-1]:.1%}; the formula for time is close, the one that counts steps is lower at first, "
        f"{counted[0]:.1%}.{_published_words(published, dict(zip(known, modelled)))}"
    )
    show.figure(drawn, words)
    show.table([_row(each, known[each], highest) for each in known if each in SHOWN_IN_TABLE], index="accumulation")


def _published_words(published: Mapping[int, float], modelled: Mapping[int, float]) -> str:
    """How far the published shares are from the modelled ones."""
    apart = {each: abs(share - modelled[each]) for each, share in published.items() if each in modelled}
    if not apart:
        return ""
    return (
        f" Published points, at {' and '.join(map(str, apart))}, are at most {100 * max(apart.values()):.1f} "
        "percentage points from the modelled line."
    )


def _row(accumulation: int, profile: Profile, highest: float) -> dict[str, object]:
    return {
        "accumulation": accumulation,
        "images a second (modelled)": f"{profile.device_samples_per_second:,.0f}",
        "of the highest rate": f"{profile.device_samples_per_second / highest:.1%}",
        "counted in steps": f"{pipelined(2, accumulation).utilisation:.1%}",
        "time in ramps": f"{profile.shares['fill and flush']:.1%}",
        "time in the weight update": f"{profile.shares['update']:.1%}",
    }
