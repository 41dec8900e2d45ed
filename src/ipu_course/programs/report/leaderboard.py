"""The leaderboard of a room: the results of its learners, merged into one page that loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Iterable, Sequence

from ipu_course.programs.report.result_file import LearnerResult
from ipu_course.programs.report.template import rendered
from ipu_course.programs.report.wording import as_shown, number
from ipu_course.progress import Score

GENERATOR = "ipu_course leaderboard"
NAMELESS = "no name given"


@dataclass(frozen=True)
class Ranking:
    """The learners' best scores at one exercise, the best first; scores that read the same share a place."""

    title: str
    unit: str
    rows: tuple[tuple[object, ...], ...]  # place, name, score


def leaderboard_page(results: Sequence[LearnerResult]) -> str:
    """Return the page of these results."""
    return rendered(
        "leaderboard.html",
        title="Leaderboard of the IPU course",
        generator=GENERATOR,
        rankings=rankings(results),
        prediction_rows=prediction_rows(results),
        solved_rows=solved_rows(results),
    )


def rankings(results: Sequence[LearnerResult]) -> list[Ranking]:
    """Return a ranking for each exercise with scores, in the order of lessons and exercises."""
    kinds = {_kind(score) for result in results for score in result.scores}
    return [_ranking(kind, results) for kind in sorted(kinds)]


def prediction_rows(results: Sequence[LearnerResult]) -> list[tuple[object, ...]]:
    """Return place, name, first guesses, close ones and the typical factor; the most close guesses come first.

    Of learners with equally many, the one with the smaller typical factor, as the page shows it, comes first.
    """
    return _with_places(
        (
            (-each.close_guesses, float(_typical(each))),
            each.name,
            (len(each.factors_off), each.close_guesses, _typical(each)),
        )
        for each in results
        if each.factors_off
    )


def solved_rows(results: Sequence[LearnerResult]) -> list[tuple[object, ...]]:
    """Return place, name and number of solved exercises; the most come first."""
    return _with_places(((-each.solved,), each.name, (each.solved,)) for each in results)


def _typical(result: LearnerResult) -> str:
    return f"{median(result.factors_off):.3g}"


def _with_places(entries: Iterable[tuple[tuple[float, ...], str, tuple[object, ...]]]) -> list[tuple[object, ...]]:
    """Return place, name and cells of each entry, a key with a name and cells, the smallest key first.

    Equal keys share a place, the places after it are left out (1, 2, 2, 4), and names are in alphabetical order.
    """
    ordered = sorted(entries, key=lambda entry: (entry[0], entry[1].casefold(), entry[1]))
    keys = [key for key, _, _ in ordered]
    return [(keys.index(key) + 1, name or NAMELESS, *cells) for key, name, cells in ordered]


def _kind(score: Score) -> tuple[str, str, str, str]:
    return score.lesson, score.exercise, score.unit, score.better


def _ranking(kind: tuple[str, str, str, str], results: Sequence[LearnerResult]) -> Ranking:
    lesson, exercise, unit, better = kind
    sign = 1 if better == "lower" else -1
    rows = _with_places(
        ((sign * as_shown(score.value),), result.name, (number(score.value),))
        for result in results
        for score in result.scores
        if _kind(score) == kind
    )
    title = f"Lesson {lesson}, {exercise}: the {'lowest' if better == 'lower' else 'highest'} wins"
    return Ranking(title, unit, tuple(rows))
