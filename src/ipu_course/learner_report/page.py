"""The learner's page, from the records to HTML. It loads nothing, and every text of the records is escaped."""

from __future__ import annotations

from datetime import date
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ipu_course.learner_report.ladder_section import difference, ladder
from ipu_course.learner_report.overview import LessonState, close_guesses, next_steps, states
from ipu_course.learner_report.wording import counted, distance, guesses, number, seconds, verdict, visible
from ipu_course.progress import Progress

TITLE = "My report of the IPU course"
GENERATOR = "ipu_course report"
EMPTY = (
    "Nothing is noted yet. Answers are noted as you work in the notebooks: a number written into a prediction, an "
    "exercise tried, a step of the ladder shown. Then make this page again: python -m ipu_course report."
)


def report_page(progress: Progress, today: date) -> str:
    """The whole page for ``progress``, dated ``today``."""
    environment = Environment(
        loader=PackageLoader("ipu_course.learner_report"),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(counted=counted, seconds=seconds)
    lessons, climbed = states(progress), ladder(progress.rungs)
    page = environment.get_template("page.html").render(
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
    )
    return page.lstrip()


def is_own_page(start: str) -> bool:
    """Whether a file that starts so is a page made by ``report_page``."""
    return start.startswith("<!DOCTYPE html>") and f'<meta name="generator" content="{GENERATOR}">' in start


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lesson(state: LessonState) -> tuple[object, ...]:
    lesson = state.lesson
    name = f"{lesson.number} {lesson.title}" if lesson.slug else lesson.title
    return name, state.words, len(state.predictions), f"{state.solved} of {state.exercise_count}"


def _predictions(state: LessonState) -> list[tuple[str, ...]]:
    return [
        (each.quantity, guesses(each), number(each.result), each.source, distance(each), each.published or "none")
        for each in state.predictions
    ]


def _name(state: LessonState) -> str:
    return f"Lesson {state.lesson.number}: {state.lesson.title}" if state.lesson.slug else state.lesson.title
