"""Whether a search that changes one decision at a time, and always takes the fastest, comes to the best plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipu_course.lessons.capstone.prices import DECISIONS

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.plan_results import EveryPlan
    from ipu_course.lessons.capstone.plans import Plan


def starts_that_miss(every: EveryPlan) -> int:
    """Return from how many fitting plans such a search stops at a plan that is slower than the best one.

    It never goes to a plan that does not fit with room to spare, and stops where no single change is faster.
    """
    rates = {each.plan: each.sequences_per_second for each in every.fitting}
    values = {field: tuple(dict.fromkeys(getattr(each.plan, field) for each in every.results)) for field in DECISIONS}
    best = every.best.sequences_per_second
    return sum(rates[_end(start, rates, values)] < best for start in rates)


def _end(start: Plan, rates: dict[Plan, float], values: dict[str, tuple[Any, ...]]) -> Plan:
    now = start
    while True:
        changes: list[dict[str, Any]] = [{field: value} for field, found in values.items() for value in found]
        near = [plan for change in changes for plan in (replace(now, **change),) if plan in rates]
        fastest = max(near, key=lambda plan: rates[plan])
        if rates[fastest] <= rates[now]:
            return now
        now = fastest
