"""The learner's page, from the records to HTML."""

from __future__ import annotations

from datetime import date

from ipu_course.learner_report import markup
from ipu_course.learner_report.ladder_section import ladder
from ipu_course.learner_report.overview import LessonState, close_guesses, next_steps, states
from ipu_course.learner_report.style import STYLE
from ipu_course.learner_report.wording import counted, distance, guesses, number, seconds, verdict
from ipu_course.progress import Progress

TITLE = "My report of the IPU course"
KINDS = (
    "modelled: computed by the IPU Model. computed: the result of arithmetic on your machine. "
    "measured: a clock on your machine. published: somebody's result on hardware, with its source."
)
LOCAL = "Made on your own machine from your own answers; nothing was sent anywhere."
EMPTY = (
    "Nothing is noted yet. Answers are noted as you work in the notebooks: a number written into a prediction, an "
    "exercise tried, a step of the ladder shown. Then make this page again: python -m ipu_course report."
)


def report_page(progress: Progress, today: date) -> str:
    """The whole page for ``progress``, dated ``today``."""
    sections = (
        markup.section("next", "What comes next", markup.items(next_steps(progress))),
        markup.section("lessons", "Lessons", _lessons(progress)),
        markup.section("predictions", "Predictions", *_predictions(progress)),
        markup.section("exercises", "Exercises", _exercises(progress)),
        markup.section("ladder", "The ladder", ladder(progress.rungs)),
    )
    body = [
        f"<header>\n<h1>{markup.text(TITLE)}</h1>",
        markup.paragraph(f"Made on {today.day} {today:%B %Y}.", "lead"),
        "" if progress.problem is None else markup.paragraph(progress.problem, "note"),
        markup.paragraph(EMPTY, "note") if progress.empty else _summary(progress),
        "</header>\n<main>",
        *(sections[:2] if progress.empty else sections),
        "</main>\n<footer>",
        markup.paragraph(LOCAL),
        "</footer>",
    ]
    return markup.page(TITLE, STYLE, "\n".join(part for part in body if part))


def _summary(progress: Progress) -> str:
    all_states = states(progress)
    solved, tried = sum(state.solved for state in all_states), len(progress.exercises)
    cards = [
        markup.card("Lessons done", f"{sum(state.done for state in all_states)} of {len(all_states)}",
                    f"{sum(state.begun for state in all_states)} begun"),
        markup.card("Exercises solved", f"{solved} of {sum(_exercise_count(state) for state in all_states)}",
                    f"{tried} tried, {counted(sum(each.attempts for each in progress.exercises), 'attempt')}"),
        markup.card("Close first guesses",
                    f"{close_guesses(progress)} of {len(progress.predictions)}",
                    "within a factor of 2; later guesses do not count"),
    ]  # fmt: skip
    times = [rung.modelled_epoch_seconds for rung in progress.rungs if rung.modelled_epoch_seconds is not None]
    if times:
        cards.append(
            markup.card(
                "Fastest epoch, modelled", seconds(min(times)), f"slowest step that fits: {seconds(max(times))}"
            )
        )
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _lessons(progress: Progress) -> str:
    rows = [
        (
            f"{state.lesson.number} {state.lesson.title}" if state.lesson.slug else state.lesson.title,
            state.words,
            str(len(state.predictions)),
            f"{state.solved} of {_exercise_count(state)}",
        )
        for state in states(progress)
    ]
    head = ("lesson", "state", "predictions", "exercises solved")
    return markup.table(head, rows, "A lesson is done when every exercise is solved", numbers=(2, 3))


def _predictions(progress: Progress) -> list[str]:
    if not progress.predictions:
        return [markup.paragraph("None yet: write a number in place of the dots of lesson.predict(...).")]
    head = ("quantity", "your guess", "result", "kind of result", "your guess was", "published")
    parts = [markup.paragraph(KINDS, "details")]
    for state in states(progress):
        if state.predictions:
            rows = [
                (
                    each.quantity,
                    guesses(each),
                    number(each.result),
                    each.source,
                    distance(each),
                    each.published or "none",
                )
                for each in state.predictions
            ]
            parts.append(markup.table(head, rows, _name(state), numbers=(1, 2), kind="predictions"))
    return parts


def _exercises(progress: Progress) -> str:
    if not progress.exercises:
        return markup.paragraph("None tried yet.")
    rows = [
        (f"{state.lesson.number}: {record.exercise}", verdict(record), str(record.attempts))
        for state in states(progress)
        for record in state.exercises
    ]
    return markup.table(("lesson and exercise", "verdict", "attempts"), rows, "Tried so far", numbers=(2,))


def _name(state: LessonState) -> str:
    return f"Lesson {state.lesson.number}: {state.lesson.title}" if state.lesson.slug else state.lesson.title


def _exercise_count(state: LessonState) -> int:
    return max(state.lesson.exercises, len(state.exercises))
