"""How near gradient accumulation brings a pipeline to its highest rate, and what each of its stages does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.figures.curves import curves_figure
from ipu_course.lessons.gradient_accumulation.exercises import highest_rate
from ipu_course.schedule import busy_by_steps, busy_by_time

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

STAGES = 2
DRAWN = (3, 4, 5, 8, 12, 24, 32, 64)
SHOWN_IN_TABLE = (3, 5, 8, 12, 24, 32, 64)  # exercise 3's answer lies between two of them
BY_TIME, BY_STEPS, MODELLED = "equal stages, by time: m / (m + 1)", "counted in steps: m / (m + 2)", "IPU Model"
DERIVED = "derived from two published traces"
# The timeline draws the many equal micro-batches of so long an update as one span of each kind.
LONG = 64
STEADY = ("stream in", "forward", "recompute", "backward", "wait")


def share_of_highest_rate(cycles: Mapping[int, float]) -> dict[int, float]:
    """Derive shares of the highest rate from ``cycles``: a call's cycles for each of two or more accumulations.

    The cycles of one more micro-batch, ``c``, are the slope between the smallest and the largest accumulation.
    No program is faster than one micro-batch in ``c``, so ``m`` micro-batches in ``C`` cycles reach ``m c / C``.
    Raises ``ValueError`` for fewer than two accumulations.
    """
    if len(cycles) < 2:
        raise ValueError("the cycles of one more micro-batch need the traces of two accumulations")
    least, most = min(cycles), max(cycles)
    each = (cycles[most] - cycles[least]) / (most - least)
    return {accumulation: accumulation * each / whole for accumulation, whole in cycles.items()}


def show_rates(program: ModelledModule, published_cycles: Mapping[int, float]) -> None:
    """Show what share of its highest rate a program over two IPUs reaches, by accumulation: a figure and a table.

    ``published_cycles`` are the cycles of one call of the same program on hardware, by accumulation.
    """
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    profiles = {each: program.profile(gradient_accumulation=each) for each in DRAWN}
    highest = highest_rate(program)
    modelled = {each: profile.device_samples_per_second / highest for each, profile in profiles.items()}
    derived = share_of_highest_rate(published_cycles)
    drawn = curves_figure(
        DRAWN,
        {
            MODELLED: list(modelled.values()),
            BY_TIME: [busy_by_time(STAGES, each) for each in DRAWN],
            BY_STEPS: [busy_by_steps(STAGES, each) for each in DRAWN],
        },
        "gradient accumulation m (micro-batches in a weight update)",
        "share of the highest rate",
        "How much of the highest rate do two IPUs reach?",
        log_x=True,
        percent=True,
        marked={f"{share:.1%}": (accumulation, share) for accumulation, share in derived.items()},
    )
    axes = drawn.axes[0]
    for text in axes.texts:  # above the points, clear of the line that rises to their right
        text.set(position=(0, 9), horizontalalignment="center")
    legend = axes.get_legend()
    for entry in legend.get_texts() if legend is not None else ():
        entry.set_text(entry.get_text().replace("published", DERIVED))
    apart = max(abs(share - modelled[each]) for each, share in derived.items())
    show.figure(
        drawn,
        "The first few micro-batches gain most, and counting steps underrates them.",
        f"Share of the highest rate against accumulation {DRAWN[0]} to {DRAWN[-1]}. The model rises from "
        f"{modelled[DRAWN[0]]:.1%} to {modelled[DRAWN[-1]]:.1%}. The formula by time starts at "
        f"{busy_by_time(STAGES, DRAWN[0]):.1%}, the one that counts steps at {busy_by_steps(STAGES, DRAWN[0]):.1%}. "
        f"The points derived from published traces, at {' and '.join(map(str, derived))}, are at most "
        f"{100 * apart:.1f} percentage points from the model.",
    )
    show.table([_row(each, profiles[each], highest) for each in SHOWN_IN_TABLE], index="accumulation")


def _row(accumulation: int, profile: Profile, highest: float) -> dict[str, object]:
    return {
        "accumulation": accumulation,
        "images per second (modelled)": f"{profile.device_samples_per_second:,.0f}",
        "percentage of the highest rate (modelled)": f"{profile.device_samples_per_second / highest:.1%}",
        "m / (m + 1), by time": f"{busy_by_time(STAGES, accumulation):.1%}",
        "m / (m + 2), by steps": f"{busy_by_steps(STAGES, accumulation):.1%}",
        "time for the weight update (modelled)": f"{profile.shares['update']:.1%}",
    }


def show_stages(program: ModelledModule) -> None:
    """Show what each IPU does with one micro-batch while the pipeline is full, and how much of an update it runs code.

    The micro-batch is in milliseconds, and the update is one with accumulation 8.
    """
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    steady, whole = (program.profile(gradient_accumulation=each) for each in (LONG, 8))
    show.table(
        [_stage_row(steady, whole, ipu) for ipu in range(len(steady.cycles))], index="one micro-batch (modelled)"
    )


def steady_milliseconds(profile: Profile, ipu: int) -> dict[str, float]:
    """Return the milliseconds of one micro-batch while the pipeline is full, by kind of work."""
    spans = [span for span in profile.timeline if span.ipu == ipu and span.repeats > 1]
    return {kind: 1e3 * sum(span.seconds / span.repeats for span in spans if span.kind == kind) for kind in STEADY}


def _stage_row(steady: Profile, whole: Profile, ipu: int) -> dict[str, object]:
    found = steady_milliseconds(steady, ipu)
    code = whole.cycles[ipu].on_tile_execute / whole.cycles[ipu].total
    names = {"stream in": "images and labels arrive", "recompute": "recomputation", "wait": "waiting"}
    cells = {names.get(kind, f"{kind} pass"): f"{value:.2f} ms" for kind, value in found.items()}
    return {"one micro-batch (modelled)": f"IPU {ipu}", **cells, "runs code, whole update": f"{code:.1%}"}
