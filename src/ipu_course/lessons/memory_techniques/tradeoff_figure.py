"""The trade-off between memory and throughput: every stored combination, each technique alone, and the learner's."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

from matplotlib.figure import Figure

from ipu_course import engine, show
from ipu_course.exercises import open_parts
from ipu_course.figures.looks import WAIT
from ipu_course.figures.style import BLUE, GREEN, INK, ORANGE, PALE_SLATE, SLATE, in_style, new_figure, only_grid
from ipu_course.lessons.memory_techniques.choices import (
    FITS,
    KIB,
    POINTS,
    ChoiceOutcome,
    fastest_that_fits,
    fullest_kib,
    stored,
)
from ipu_course.lessons.memory_techniques.learners_program import MakeProgram, profile_of_program, recomputed
from ipu_course.lessons.memory_techniques.techniques import ALONE, PLAIN, modelled, rate_per_ipu

PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}


class NamedPoint(NamedTuple):
    """A program in the plane: its name, KiB on the fullest tile, and samples a second of each IPU."""

    name: str
    kib: float
    rate: float


def front(outcomes: Sequence[ChoiceOutcome]) -> list[ChoiceOutcome]:
    """Return the outcomes that no other one beats in both memory and throughput, the smallest first."""
    found: list[ChoiceOutcome] = []
    for outcome in sorted(outcomes, key=lambda each: (each.kib, -each.rate)):
        if not found or outcome.rate > found[-1].rate:
            found.append(outcome)
    return found


@engine.needs_the_model
def show_sets(block: Any) -> None:
    """Show all 256 sets of checkpoints, and that of a learner's ``block`` unless it is still open."""
    outcomes = stored().sets
    yours = _learners("run_block", block, recomputed)
    best = fastest_that_fits(outcomes)
    limit = modelled(PLAIN).memory.tile_bytes / KIB
    fit = sum(each.verdict == FITS for each in outcomes)
    own = f" Yours: {yours.kib:.0f} KiB, {yours.rate:,.0f} samples/s." if yours else ""
    show.figure(
        plane_figure(outcomes, limit, f"All {len(outcomes)} sets of checkpoints inside a block (modelled)",
                     marked=() if yours is None else (yours,)),
        "Sets that need the same memory can differ by nearly a tenth in speed.",
        f"KiB of the fullest tile and samples a second of {len(outcomes)} sets of checkpoints, modelled; {fit} of them "
        f"fit. The fastest that fits needs {best.kib:.0f} KiB and has {best.rate:,.0f} samples/s; the slowest set has "
        f"{min(each.rate for each in outcomes):,.0f}.{own}",
    )  # fmt: skip
    if yours:
        print(f"the fastest set that fits keeps: {'; '.join(best.choice.kept or ())} (of {len(POINTS)} results)")


@engine.needs_the_model
def show_trade_off(make_program: MakeProgram) -> None:
    """Show all combinations, each technique alone, and the learner's program unless it is still open."""
    outcomes = stored().combinations
    alone = [_point(str(number), modelled(each)) for number, each in enumerate(ALONE, 1)]
    plain = _point("plain", modelled(PLAIN))
    marked = [plain]
    yours = _learners("make_program", make_program, profile_of_program)
    if yours:
        marked.append(yours)
    best = fastest_that_fits(outcomes)
    listed = "; ".join(
        f"{technique.name} {point.kib:.0f} KiB, {point.rate:,.0f}" for technique, point in zip(ALONE, alone)
    )
    others = "; ".join(f"{point.name} {point.kib:.0f} KiB, {point.rate:,.0f}" for point in marked)
    show.figure(
        plane_figure(outcomes, modelled(PLAIN).memory.tile_bytes / KIB,
                     f"{len(outcomes)} combinations, and each technique alone (modelled)", alone, marked,
                     [f"{number}  {each.name}" for number, each in enumerate(ALONE, 1)]),
        "No technique is enough alone, and the best combination is faster than the plain program.",
        f"KiB of the fullest tile and samples a second for each IPU, modelled. Alone: {listed}. {others}. The fastest "
        f"of {len(outcomes)} combinations that fits: {best.kib:.0f} KiB, {best.rate:,.0f}.",
    )  # fmt: skip


def _learners(name: str, answer: Any, profiled: Callable[[Any], Any]) -> NamedPoint | None:
    """Return the point of a learner's answer; none as long as it is open or does not run."""
    if open_parts(name, answer):
        return None
    try:
        return _point("yours", profiled(answer))
    except Exception as problem:  # whatever the learner's code does, the figure shows the others
        print(f"{name} is not in the figure, because it does not run: {problem}")
        return None


def _point(name: str, profile: Any) -> NamedPoint:
    return NamedPoint(name, fullest_kib(profile), rate_per_ipu(profile))


def plane_figure(
    outcomes: Sequence[ChoiceOutcome],
    limit: float,
    title: str,
    alone: Sequence[NamedPoint] = (),
    marked: Sequence[NamedPoint] = (),
    key: Sequence[str] = (),
) -> Figure:
    """Return the plane of memory and throughput; ``alone`` are numbered points, ``marked`` diamonds with a name."""
    with in_style():
        figure, axes = new_figure(4.2)
        axes.plot([each.kib for each in outcomes], [each.rate for each in outcomes], "o", color=PALE_SLATE,
                  markeredgecolor=SLATE, markeredgewidth=0.4, markersize=4, label="enumerated")  # fmt: skip
        best = front(outcomes)
        axes.plot([each.kib for each in best], [each.rate for each in best], "-", color=BLUE, linewidth=1.5,
                  drawstyle="steps-post", label="no other is better in both")  # fmt: skip
        fastest = fastest_that_fits(tuple(outcomes))
        axes.plot(fastest.kib, fastest.rate, "s", color=GREEN, markersize=9, label="fastest that fits")
        for point in alone:
            axes.plot(point.kib, point.rate, "o", color="white", markeredgecolor=INK, markersize=13)
            axes.annotate(point.name, (point.kib, point.rate), ha="center", va="center", fontsize=8.5)
        for point in marked:
            axes.plot(point.kib, point.rate, "D", color=ORANGE, markersize=8, zorder=5)
            axes.annotate(point.name, (point.kib, point.rate), (0, -18), textcoords="offset points", ha="center",
                          fontsize=9, bbox=PLATE, zorder=6)  # fmt: skip
        low, high = engine.close_shares()
        axes.axvspan(low * limit, high * limit, **WAIT.area(0.0), zorder=0, label="too close to call")
        axes.axvline(limit, color=INK, linestyle="--", linewidth=1.2)
        axes.annotate(f"a tile: {limit:.0f} KiB", (limit, 0.02), (4, 0), xycoords=("data", "axes fraction"),
                      textcoords="offset points", fontsize=9)  # fmt: skip
        axes.set(xlabel="KiB on the fullest tile", ylabel="samples a second for each IPU", title=title)
        only_grid(axes, "both")
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        if key:
            axes.annotate("\n".join(key), (1.02, 0.98), xycoords="axes fraction", va="top", fontsize=9, linespacing=1.6)
    return figure
