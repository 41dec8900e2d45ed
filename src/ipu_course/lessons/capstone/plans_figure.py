"""All plans as points: the fullest tile against throughput, with the learner's own plans among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from matplotlib.figure import Figure

from ipu_course import engine, show
from ipu_course.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE_SLATE, in_style, new_figure
from ipu_course.lessons.capstone.budget import KIB, Budget
from ipu_course.lessons.capstone.plan_results import FITS, MARGIN
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.budget import Compilation
    from ipu_course.lessons.capstone.plan_results import EveryPlan, PlanResult

TILE_KIB = 624
WIDEST_KIB, FURTHEST_KIB = 1000, 2000
NO_ROOM = "no room to spare"
KINDS = ((FITS, f"fits, {MARGIN:.0%} is free", BLUE, "o"),
         (NO_ROOM, f"fits, less than {MARGIN:.0%} is free", GREEN, "v"),
         ("too close to call", "too close to call if it fits", ORANGE, "^"),
         ("does not fit", "does not fit", PALE_SLATE, "s"))  # fmt: skip


def plans_figure(every: EveryPlan, own: Sequence[Compilation] = ()) -> Figure:
    """Draw a point for each plan of the space, and a diamond for each of the learner's ``own``.

    Own plans of more than ``FURTHEST_KIB`` are arrows at the right edge, so that all others stay apart.
    """
    with in_style():
        figure, axes = new_figure(3.8)
        for kind, label, colour, marker in KINDS:
            found = [each for each in every.results if _kind(each) == kind]
            axes.plot(_kib(found), [each.sequences_per_second for each in found], marker, color=colour, markersize=4,
                      linestyle="none", label=label, markeredgewidth=0)  # fmt: skip
        best, near = every.best, every.near_ties
        axes.axhspan(
            (1 - engine.largest_ratio_error()) * best.sequences_per_second,
            best.sequences_per_second,
            facecolor=GREY,
            zorder=0,
            hatch="//",
            edgecolor="white",
            label=f"within the model's error\nof the best: {len(near)} plans fit",
        )
        axes.plot(
            _kib(near),
            [each.sequences_per_second for each in near],
            "o",
            color=INK,
            markerfacecolor="none",
            markersize=9,
            linestyle="none",
            label="one of these plans",
        )
        axes.plot(_kib([best]), [best.sequences_per_second], "*", color=INK, markersize=15, label="the best that fits")
        widest = _widest_kib(own)
        near_own = [each for each in own if max(each.tile_kib) <= FURTHEST_KIB]
        far_own = [each for each in own if max(each.tile_kib) > FURTHEST_KIB]
        for kib, plans, marker, label in (
            ([max(each.tile_kib) for each in near_own], near_own, "D", "yours"),
            ([widest] * len(far_own), far_own, ">", f"yours, beyond {FURTHEST_KIB:,} KiB"),
        ):
            if plans:
                axes.plot(
                    kib, [each.sequences_per_second for each in plans], marker, color=INK, markerfacecolor="white",
                    markersize=7, linestyle="none", label=label, clip_on=False,
                )  # fmt: skip
        axes.axvline(TILE_KIB, color=INK, linestyle="--", linewidth=1)
        axes.set(xlabel="KiB of the fullest tile", ylabel="sequences/s (modelled)", xlim=(None, widest),
                 title=f"All {len(every.results)} plans; the dashed line is a tile's {TILE_KIB} KiB")  # fmt: skip
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _widest_kib(own: Sequence[Compilation]) -> float:
    """Return where the picture ends: far to the right nothing fits, but most of the learner's own plans are in it."""
    return max([WIDEST_KIB, *(1.03 * max(each.tile_kib) for each in own if max(each.tile_kib) <= FURTHEST_KIB)])


def _kind(result: PlanResult) -> str:
    """Return the verdict on a plan, or that it fits without room to spare."""
    return NO_ROOM if result.verdict == FITS and not result.fits else result.verdict


def _kib(results: Sequence[PlanResult]) -> list[float]:
    return [max(each.tile_bytes) / KIB for each in results]


def show_every_plan(every: EveryPlan, budget: Budget) -> None:
    """Show all plans of a size, and the learner's own."""
    if every is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    own = tuple(budget.used)
    fit, tight, close, rest = (sum(_kind(each) == kind for each in every.results) for kind, *_ in KINDS)
    told = f"{fit} fit with {MARGIN:.0%} of every tile free, {tight} with less, for {close} it is too close to call, "
    told += f"{rest} do not fit"
    yours = ", ".join(f"{each.sequences_per_second:,.0f} at {max(each.tile_kib):,.0f} KiB" for each in own)
    near, best = len(every.near_ties), every.best
    show.figure(
        plans_figure(every, own),
        f"Speed and memory pull against each other. Of the plans that fit, {near} are within the model's own error "
        "of the best one, so which of them is best on hardware is too close to call. (Plans that need far "
        "more than a tile are left out of the picture.)",
        f"Sequences per second against the fullest tile of {len(every.results)} plans, modelled: {told}. The best that "
        f"fits reaches {best.sequences_per_second:,.0f} with {_kib([best])[0]:,.0f} KiB. With it, {near} plans that "
        f"fit are within {engine.largest_ratio_error():.0%} of its speed, which is the model's own error. "
        f"Yours: {yours or 'none'}. Other plans of more than {_widest_kib(own):,.0f} KiB are not drawn.",
    )
