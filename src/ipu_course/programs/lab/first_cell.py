"""The first cell of a learner's copy: it says what is done, what comes next, and how long that takes."""

from __future__ import annotations

from html import escape

from ipu_course.figures.shown import display_raw
from ipu_course.lesson import wait_for_guesses
from ipu_course.programs.report.overview import LessonState, states
from ipu_course.progress import Progress, read_progress

_MARKS = {"done": "✓", "begun": "◐", "not begun": "○"}


def start(lesson: str) -> None:
    """Show the learner's progress at the start of ``lesson``, such as "02"; from now on, results wait for guesses."""
    wait_for_guesses()
    progress = read_progress()
    known = [state for state in states(progress) if state.lesson.slug]
    lines = progress_lines(lesson, known, progress)
    shown = "".join(f"<p>{escape(line)}</p>" for line in lines) + f"<p>{' &nbsp; '.join(map(_chip, known))}</p>"
    display_raw({"text/html": shown, "text/plain": "\n".join(lines)}, {})


def progress_lines(lesson: str, known: list[LessonState], progress: Progress) -> list[str]:
    """Return the sentences on a learner's progress at the start of ``lesson``."""
    numbers = [state.lesson.number for state in known]
    place = numbers.index(lesson) if lesson in numbers else None
    done = [state.lesson.number for state in known if state.done]
    lines = [] if place is None else [f"Lesson {lesson}: {_here(known[place])}"]
    lines.append(f"Done so far: {_listed(done)}. {_next(known, place)}")
    if left := sum(_minutes_left(state) for state in known):
        lines.append(f"What is left of the course takes about {_duration(left)}.")
    return lines + ([] if progress.problem is None else [progress.problem])


def _here(state: LessonState) -> str:
    if state.done:
        return "you have solved all of its exercises."
    planned = f"plan {state.lesson.minutes} minutes, {state.lesson.exercise_minutes} of them for the exercises."
    return f"{planned} You have solved {state.solved} of {state.exercise_count} exercises." if state.begun else planned


def _next(known: list[LessonState], place: int | None) -> str:
    """Say which lesson comes after this one: the first later one that is not done, else the first earlier one."""
    later, earlier = (known, []) if place is None else (known[place + 1 :], known[:place])
    open_ones = [state.lesson for state in (*later, *earlier) if not state.done]
    if open_ones:
        following = open_ones[0]
        return f"Next comes lesson {following.number}, {following.title} ({following.minutes} minutes)."
    return "You have finished the course." if all(state.done for state in known) else "This is the last one."


def _minutes_left(state: LessonState) -> int:
    """Return the planned minutes of a lesson, without the minutes of the exercises that are solved."""
    if state.done:
        return 0
    solved = state.solved / state.exercise_count if state.exercise_count else 0.0
    return state.lesson.minutes - round(state.lesson.exercise_minutes * solved)


def _duration(minutes: int) -> str:
    hours, rest = divmod(-(-minutes // 5) * 5, 60)  # to five minutes: a plan is no more exact
    parts = [f"{hours} hour{'s' if hours > 1 else ''}"] if hours else []
    return " ".join([*parts, *([f"{rest} minutes"] if rest else [])])


def _listed(numbers: list[str]) -> str:
    if not numbers:
        return "no lesson yet"
    *others, last = numbers
    return f"lessons {', '.join(others)} and {last}" if others else f"lesson {last}"


def _chip(state: LessonState) -> str:
    """Return a link to a lesson with its mark; its title says the state in words."""
    lesson = state.lesson
    words = escape(f"{lesson.title}: {state.words}")
    return f'<a href="{lesson.notebook}" title="{words}">{_MARKS[state.words]}&nbsp;{lesson.number}</a>'
