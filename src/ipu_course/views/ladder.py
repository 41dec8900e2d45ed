"""The ladder so far, as a figure and a table in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, figures, show
from ipu_course.programs.train.published import published_ladder

if TYPE_CHECKING:
    from ipu_course.programs.train.ladder import Rung

NO_TIME = "does not fit"


def show_rungs(rungs: Sequence[Rung]) -> None:
    """Show these steps of the hands-on: seconds an epoch, modelled beside published."""
    names = [rung.published.name for rung in rungs]
    modelled = [rung.epoch_seconds for rung in rungs]
    published = [rung.published.epoch_seconds for rung in rungs]
    figures.show(figures.ladder_figure(names, modelled, published), description(rungs))
    show.table([_row(rung) for rung in rungs], index="step")
    ladder = published_ladder()
    print(f"Published figures: {ladder.source}; {ladder.machine}.")
    print(f"Host work in the modelled times: {ladder.host.source}.")


def description(rungs: Sequence[Rung]) -> str:
    """The figure in words."""
    parts = [
        f"{rung.published.name} {_seconds(rung.epoch_seconds)} modelled, "
        f"{_seconds(rung.published.epoch_seconds)} published"
        for rung in rungs
    ]
    return f"Two bars for each step, seconds an epoch: {'; '.join(parts)}."


def _row(rung: Rung) -> dict[str, object]:
    return {
        "step": rung.published.name,
        "modelled": _seconds(rung.epoch_seconds),
        "published": _seconds(rung.published.epoch_seconds),
        "difference": "-" if rung.error is None else f"{rung.error:+.1%}",
        "limited by (modelled)": rung.profile.limited_by if engine.may_run(rung.profile) else "memory",
    }


def _seconds(value: float | None) -> str:
    return NO_TIME if value is None else f"{value:.1f} s"
