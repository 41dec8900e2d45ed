"""Notes of what the learner answered, for the lessons to call: they never raise and never print."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Callable

from ipu_course.progress.record import (
    BudgetUse,
    Entry,
    ExerciseRecord,
    PredictionRecord,
    Progress,
    QuizAnswer,
    Rung,
    Score,
)
from ipu_course.progress.store import LOCK_SECONDS, DamagedFile, NewerFile, add, load, progress_file

# Notes that could not be written yet. They count in this process, and go to the file with the next note that can be.
_waiting: list[Entry] = []
_guard = threading.Lock()


def note_prediction(
    lesson: str, quantity: str, guess: float, result: float, source: str, compared_with: str | None = None
) -> None:
    """Note a guess and the result that was then shown; what is not a finite number is not noted."""
    _note(
        lambda: PredictionRecord(
            _text(lesson),
            _text(quantity),
            _finite(guess),
            _finite(result),
            _text(source),
            None if compared_with is None else _text(compared_with),
        )
    )


def note_check(lesson: str, exercise: str, correct: bool) -> None:
    """Note one attempt at an exercise."""
    _note(lambda: ExerciseRecord(_text(lesson), _text(exercise), 1, 1 if correct else None))


def note_rung(
    lesson: str, step: str, modelled_epoch_seconds: float | None, published_epoch_seconds: float | None
) -> None:
    """Note a step of the ladder; ``None`` stands for a step without a time: not known, or it does not fit."""
    times = modelled_epoch_seconds, published_epoch_seconds
    _note(lambda: Rung(_text(lesson), _text(step), *(None if time is None else _finite(time) for time in times)))


def note_score(lesson: str, exercise: str, value: float, unit: str, better: str) -> None:
    """Note a score at an exercise, of which the best is kept; ``better`` is "lower" or "higher"."""
    _note(lambda: Score(_text(lesson), _text(exercise), _finite(value), _text(unit), better))


def note_quiz(quiz: str, question: str, before: str = "", after: str = "") -> None:
    """Note the letter of an answer to a question of a quiz, given before the lessons or after them."""
    _note(lambda: QuizAnswer(_text(quiz), _text(question), _text(before), _text(after)))


def note_budget(lesson: str, budget: str, begun: int, used: int) -> None:
    """Note how many budgets were begun since the last note, and how many of their units were used."""
    _note(lambda: BudgetUse(_text(lesson), _text(budget), int(begun), int(used)))


def read_progress() -> Progress:
    """Return all that is noted, with what this process could not write; its ``problem`` says what is wrong, if any."""
    try:
        known = load(progress_file())
    except NewerFile:
        known = Progress(problem="A newer release of the course wrote the progress file. It is left as it is.")
    except DamagedFile:
        known = Progress(problem="The progress file is damaged. The next answer puts it aside and begins a new one.")
    except Exception as problem:
        known = Progress(problem=f"The progress file cannot be read ({type(problem).__name__}).")
    with _guard:
        unwritten = tuple(_waiting)
    if unwritten and known.problem is None:
        known = replace(known, problem="Answers of this session could not be written to the progress file.")
    return known.with_entries(unwritten)


def _note(make: Callable[[], Entry]) -> None:
    # Whatever happens to the record, a lesson goes on: so every exception ends here.
    try:
        entry = make()
        with _guard:
            # One note waits for other kernels' locks; those after it only try.
            wait_seconds = 0.0 if _waiting else LOCK_SECONDS
            _waiting.append(entry)
            add(progress_file(), tuple(_waiting), wait_seconds)
            _waiting.clear()
    except Exception:
        return


def _text(value: object) -> str:
    # Half a surrogate pair is text in Python, but not in a file.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number
