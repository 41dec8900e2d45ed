"""The learner's page, from the records to HTML. It loads nothing, and every text of the records is escaped."""

from __future__ import annotations

from datetime import date

from ipu_course.programs.report.ladder_section import difference, ladder
from ipu_course.programs.report.overview import LessonState, close_guesses, next_steps, states
from ipu_course.programs.report.quiz_section import quiz_tables
from ipu_course.programs.report.template import rendered
from ipu_course.programs.report.wording import distance, guesses, number, seconds, verdict
from ipu_course.progress import Progress

TITLE = "My report of the IPU course"
GENERATOR = "ipu_course report"
EMPTY = (
    "There are no answers of yours yet. The notebooks note each prediction, exercise and step of the ladder as you go. "
    "Then make this page again with python -m ipu_course report."
)


def report_page(progress: Progress, today: date) -> str:
    """Return the whole page for ``progress``, dated ``today``."""
    lessons, climbed = states(progress), ladder(progress.rungs)
    return rendered(
        "page.html",
        title=TITLE,
        generator=GENERATOR,
        empty=EMPTY,
        today=f"{today.day} {today:%B %Y}",
        progress=progress,
        states=lessons,
        close_guesses=close_guesses(progress),
        next_steps=next_steps(progress),
        lesson_rows=[_lesson(state) for state in lessons],
        predictions=[(_name(state), _predictions(state)) for state in lessons if state.predictions],
        exercise_rows=[
            (f"{state.lesson.number}: {record.exercise}", verdict(record), record.attempts)
            for state in lessons
            for record in state.exercises
        ],
        ladder=climbed,
        ladder_rows=[
            (rung.step, seconds(rung.modelled_epoch_seconds), seconds(rung.published_epoch_seconds), difference(rung))
            for rung in (climbed.rungs if climbed else ())
        ],
        score_rows=[
            (f"{score.lesson}: {score.exercise}", number(score.value), score.unit) for score in progress.scores
        ],
        budget_rows=[
            (f"{each.lesson}: {each.budget}", each.begun, each.renewals, each.used) for each in progress.budgets
        ],
        quizzes=quiz_tables(progress),
    )


def _lesson(state: LessonState) -> tuple[object, ...]:
    lesson = state.lesson
    name = f"{lesson.number} {lesson.title}" if lesson.slug else lesson.title
    return name, state.words, len(state.predictions), f"{state.solved} of {state.exercise_count}"


def _predictions(state: LessonState) -> list[tuple[str, ...]]:
    return [
        (each.quantity, guesses(each), number(each.result), each.source, distance(each), each.compared_with or "none")
        for each in state.predictions
    ]


def _name(state: LessonState) -> str:
    return f"Lesson {state.lesson.number}: {state.lesson.title}" if state.lesson.slug else state.lesson.title
