"""The leaderboard of a room: the results of its learners, merged into one page that loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Sequence

from ipu_course.programs.report.result_file import LearnerResult
from ipu_course.programs.report.template import rendered
from ipu_course.programs.report.wording import number
from ipu_course.progress import Score

GENERATOR = "ipu_course leaderboard"
NAMELESS = "no name given"


@dataclass(frozen=True)
class Ranking:
    """The learners' best scores at one exercise, the best first; equal scores share a place."""

    title: str
    unit: str
    rows: tuple[tuple[int, str, str], ...]


def leaderboard_page(results: Sequence[LearnerResult]) -> str:
    """Return the page of these results."""
    solved = sorted(results, key=lambda result: -result.solved)
    return rendered(
        "leaderboard.html",
        title="Leaderboard of the IPU course",
        generator=GENERATOR,
        rankings=rankings(results),
        prediction_rows=prediction_rows(results),
        solved_rows=[(result.name or NAMELESS, result.solved) for result in solved],
    )


def rankings(results: Sequence[LearnerResult]) -> list[Ranking]:
    """Return a ranking for each exercise with scores, in the order of lessons and exercises."""
    kinds = {_kind(score) for result in results for score in result.scores}
    return [_ranking(kind, results) for kind in sorted(kinds)]


def prediction_rows(results: Sequence[LearnerResult]) -> list[tuple[str, int, int, str]]:
    """Return name, first guesses, close ones and the typical factor; the learner with the most close guesses first."""
    guessed = [result for result in results if result.factors_off]
    ordered = sorted(guessed, key=lambda result: (-result.close_guesses, median(result.factors_off)))
    return [
        (result.name or NAMELESS, len(result.factors_off), result.close_guesses, f"{median(result.factors_off):.3g}")
        for result in ordered
    ]


def _kind(score: Score) -> tuple[str, str, str, str]:
    return score.lesson, score.exercise, score.unit, score.better


def _ranking(kind: tuple[str, str, str, str], results: Sequence[LearnerResult]) -> Ranking:
    lesson, exercise, unit, better = kind
    scored = [
        (score.value, result.name or NAMELESS) for result in results for score in result.scores if _kind(score) == kind
    ]
    scored.sort(key=lambda each: each[0] if better == "lower" else -each[0])
    values = [value for value, _ in scored]
    rows = tuple((values.index(value) + 1, name, number(value)) for value, name in scored)
    return Ranking(f"Lesson {lesson}, {exercise}: the {'lowest' if better == 'lower' else 'highest'} wins", unit, rows)
