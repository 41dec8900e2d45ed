"""The best plan beside what ``make_it_fit`` finds, and beside the published configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipu_course import engine, show
from ipu_course.lessons.capstone.budget import KIB
from ipu_course.lessons.capstone.prices import plan_in_words, result_for
from ipu_course.lessons.capstone.published_plans import PUBLISHED_PLANS
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.published import published_figure

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.plan_results import EveryPlan
    from ipu_course.lessons.capstone.transformer import TransformerSize


def show_plans_compared(every: EveryPlan) -> None:
    """Show the best plan, what the search finds, and the published configuration, all on this task."""
    if every is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    best = every.best
    published = result_for(every, PUBLISHED_PLANS[every.size.name])
    rows = [
        _compared("the best of the space", plan_in_words(best.plan), best.sequences_per_second, every,
                  max(best.tile_bytes) / KIB),
        _compared("the published configuration", plan_in_words(published.plan), published.sequences_per_second, every,
                  max(published.tile_bytes) / KIB),
    ]  # fmt: skip
    if every.search is not None:
        found = every.search
        rows.insert(1, _compared("make_it_fit", "; ".join(found.changes), found.sequences_per_second, every, None))
    show.table(rows, index="program")
    print(
        f"Of the plans that fit, {len(every.near_ties)} are within {engine.largest_ratio_error():.0%} of the best one, "
        "itself included (modelled). When it compared two published programs, the model was off by up to that much."
    )


def show_published(size: TransformerSize, every: EveryPlan) -> None:
    """Print the published rate of a size on 16 IPUs, what follows for four, and what the model says."""
    for key in (f"{size.name}_16_ipus", f"{size.name}_4_ipus"):
        print(published_figure(Path(__file__).parent, key).line)
    if every is not NOT_MODELLED and every.published_task is not None:
        print(f"modelled: {every.published_task:,.0f} sequences/s, this lesson's network with that configuration")


def _compared(name: str, words: str, rate: float, every: EveryPlan, kib: float | None) -> dict[str, object]:
    return {
        "program": name,
        "decisions": words,
        "fullest tile (modelled)": "-" if kib is None else f"{kib:,.0f} KiB",
        "sequences/s (modelled)": f"{rate:,.0f}",
        "of the best": f"{rate / every.best.sequences_per_second:.0%}",
    }
