"""The ladder so far: the learner's modelled seconds an epoch beside those that follow from published rates."""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from typing import Any, Sequence

import matplotlib
from markupsafe import Markup

from ipu_course.errors import DataError
from ipu_course.figures.style import GREY, INK
from ipu_course.ladder import PublishedLadder, ladder_figure, published_ladder
from ipu_course.programs.report.wording import NO_TIME, visible
from ipu_course.progress import Rung

# Text stays text: it can be searched, and takes the page's colour. What a step is called is no formula.
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "ipu-course", "text.parse_math": False}
_PAGE_COLOURS = {INK.lower(): "var(--ink)", "#000000": "var(--ink)", GREY.lower(): "var(--grid)"}
_CAPTION = (
    "Each step makes one more change; the bars show the seconds that an epoch takes, and the table below has the same "
    "numbers. The IPU Model computed the modelled ones for the workshop's machine, with host work that is fitted on "
    "these steps."
)


@dataclass(frozen=True)
class Ladder:
    """The steps in the published order, their figure, and what stands below it."""

    rungs: tuple[Rung, ...]
    figure: Markup
    caption: str


def ladder(rungs: Sequence[Rung]) -> Ladder | None:
    """Return what the page shows of the ladder, ``None`` where no step was climbed."""
    if not rungs:
        return None
    published = _published()
    ordered = _in_order(rungs, published)
    words = ""
    if published is not None:
        words = f" The others are derived from the published rates of {published.source}; {published.machine}."
    return Ladder(tuple(ordered), Markup(_svg(ordered)), _CAPTION + words)


def difference(rung: Rung) -> str:
    """Return by what percentage the modelled time is above the one that follows from the published rate."""
    modelled, published = rung.modelled_epoch_seconds, rung.published_epoch_seconds
    if modelled is None or not published:
        return "-"
    return f"{100 * (modelled / published - 1):+.1f} %"


def _published() -> PublishedLadder | None:
    try:
        return published_ladder()
    except DataError:  # installed without the course's data folder
        return None


def _in_order(rungs: Sequence[Rung], published: PublishedLadder | None) -> list[Rung]:
    """Return the rungs in the published order; steps that were not published stay at the end."""
    names = [] if published is None else [step.name for step in published.steps]
    return sorted(rungs, key=lambda rung: names.index(rung.step) if rung.step in names else len(names))


def _description(rungs: Sequence[Rung]) -> str:
    def words(value: float | None) -> str:
        return NO_TIME if value is None else f"{value:.1f} seconds"

    parts = [
        f"{rung.step} {words(rung.modelled_epoch_seconds)} modelled, {words(rung.published_epoch_seconds)} derived"
        for rung in rungs
    ]
    return f"Two bars for each step, seconds an epoch: {'; '.join(parts)}."


def _svg(rungs: Sequence[Rung]) -> str:
    """Return the course's figure as one element that follows the page's colours."""
    with matplotlib.rc_context({key: value for key, value in _SETTINGS.items() if key in matplotlib.rcParams}):
        figure = ladder_figure(
            [visible(rung.step) for rung in rungs],
            [rung.modelled_epoch_seconds for rung in rungs],
            [rung.published_epoch_seconds for rung in rungs],
        )
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    drawn = buffer.getvalue()
    # A style element would hold for the whole page, and the page's rules say the same.
    unwanted = r"<!--.*?-->|<(metadata|style)\b.*?</\1>"
    drawn = re.sub(unwanted, "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r"<[^>]*>", lambda tag: _with_page_colours(tag[0]), drawn)
    opening, rest = drawn.split(">", 1)
    view = re.search(r'viewBox="[^"]+"', opening)
    assert view is not None
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {view[0]} role="img" '
        f'aria-label="{html.escape(visible(_description(rungs)))}" class="figure">{rest.strip()}'
    )


def _with_page_colours(tag: str) -> str:
    for colour, variable in _PAGE_COLOURS.items():
        tag = re.sub(rf"(fill|stroke): {colour}", rf"\1: {variable}", tag)
    # White lines around bars are the paper.
    return re.sub(r"stroke: (#ffffff|white)", "stroke: var(--paper)", tag)
