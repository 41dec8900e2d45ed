"""What each decision is worth: the best plan with one value changed, and the best plan that has this value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.plan_results import EveryPlan, PlanResult
    from ipu_course.lessons.capstone.plans import Plan

# Names of the decisions, by the field of a plan.
DECISIONS: Mapping[str, str] = {
    "layers": "layers of the four IPUs",
    "head": "place of the head",
    "micro_batch": "micro-batch",
    "every_layer": "checkpoints",
    "state_on_chip": "place of the optimiser state",
    "proportion": "available memory proportion",
}


@dataclass(frozen=True)
class Price:
    """One value of a decision: the rates of the best plan with only this changed, and with the rest chosen anew.

    Rates are in sequences per second, and ``None`` where nothing fits with room to spare. ``plans`` counts those that
    do.
    """

    value: str
    alone: float | None
    anew: float | None
    plans: int
    is_best: bool


def prices(every: EveryPlan, decision: str) -> tuple[Price, ...]:
    """Return the price of every value of a decision, a field of ``Plan``, in the order of the space."""
    best = every.best.plan
    values = dict.fromkeys(getattr(each.plan, decision) for each in every.results)
    return tuple(_price(every, decision, value, best) for value in values)


def _price(every: EveryPlan, decision: str, value: Any, best: Plan) -> Price:
    changed: Any = {decision: value}
    alone = result_for(every, replace(best, **changed))
    having = [each for each in every.fitting if getattr(each.plan, decision) == value]
    return Price(
        in_words(decision, value),
        alone.sequences_per_second if alone.fits else None,
        having[0].sequences_per_second if having else None,
        len(having),
        getattr(best, decision) == value,
    )


def result_for(every: EveryPlan, plan: Plan) -> PlanResult:
    """Return the stored result of a plan. Raises ``ValueError`` for a plan outside the space."""
    for each in every.results:
        if each.plan == plan:
            return each
    raise ValueError(f"{plan} is not in the space")


def still_fitting(every: EveryPlan) -> int:
    """Return how many single changes of the best plan still fit with room to spare."""
    found = [price for decision in DECISIONS for price in prices(every, decision)]
    return sum(price.alone is not None and not price.is_best for price in found)


def single_changes(every: EveryPlan) -> int:
    """Return how many single changes of the best plan the space has."""
    return sum(not price.is_best for decision in DECISIONS for price in prices(every, decision))


def head_loss_percent(every: EveryPlan) -> float:
    """Return what the head on the last IPU costs, in percent, when everything else is chosen anew."""
    rates = [each.sequences_per_second for each in every.fitting if each.plan.head != 0]
    return 100 * (1 - rates[0] / every.best.sequences_per_second)


def in_words(decision: str, value: Any) -> str:
    """Return a value of a decision as learners read it."""
    if decision == "layers":
        return ", ".join(map(str, value))
    if decision == "head":
        return f"IPU {value}"
    if decision == "every_layer":
        return "every layer's output" if value else "what enters a stage"
    if decision == "state_on_chip":
        return "on the chip" if value else "off the chip"
    return f"{value:g}"


def plan_in_words(plan: Plan) -> str:
    """Return all decisions of a plan in one line."""
    return "; ".join(f"{name}: {in_words(field, getattr(plan, field))}" for field, name in DECISIONS.items())
