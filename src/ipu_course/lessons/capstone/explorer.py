"""Lesson 17's explorer: what each decision is worth, over all plans of the space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import figures
from ipu_course.explorers import Choice, Explorer, View
from ipu_course.lessons.capstone.prices import DECISIONS, Price, prices

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.plan_results import EveryPlan

ALONE, ANEW = "only this value changed", "all other decisions chosen anew"
NONE_FITS = "not enough room"


def decision_view(every: EveryPlan, decision: str) -> View:
    """Show the rates for every value of one decision, and how many plans fit with each."""
    found = prices(every, decision)
    name = DECISIONS[decision]
    title = name[0].upper() + name[1:]  # capitalize() would write "ipus"
    drawn = figures.bars_figure(
        [f"{price.value}{' (best plan)' if price.is_best else ''}" for price in found],
        {ALONE: [price.alone for price in found], ANEW: [price.anew for price in found]},
        "sequences/s (modelled)",
        f"{title}: the best plan, and other values",
        form="{:,.0f}",
        missing=NONE_FITS,
    )
    return View(
        drawn,
        takeaway=f"{title}: the first bar changes nothing else, the second everything.",
        description="Two bars for each value, sequences per second, modelled. " + "; ".join(map(_told, found)) + ".",
        rows=[_decision_row(price) for price in found],
    )


def _told(price: Price) -> str:
    return f"{price.value}: {_rate(price.alone)} {ALONE}, {_rate(price.anew)} with {ANEW}"


def _rate(rate: float | None) -> str:
    return NONE_FITS if rate is None else f"{rate:,.0f}"


def _decision_row(price: Price) -> dict[str, object]:
    return {
        "value": price.value,
        f"sequences/s, {ALONE} (modelled)": _rate(price.alone),
        f"sequences/s, {ANEW} (modelled)": _rate(price.anew),
        "plans with 5 % of every tile free": f"{price.plans:,}",
    }


PRICES = Explorer(
    controls={"decision": Choice("decision", {name: field for field, name in DECISIONS.items()}, "micro_batch")},
    view=decision_view,
)
