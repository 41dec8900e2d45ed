"""Notes of what the learner answered, for the lessons to call: they never raise and never print."""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import replace
from typing import Callable

from ipu_course.progress.file_format import DamagedFile, NewerFile
from ipu_course.progress.place import progress_file
from ipu_course.progress.record import (
    Prediction,
    Progress,
    QuizAnswer,
    Rung,
    Score,
    with_check,
    with_prediction,
    with_quiz_answer,
    with_rung,
    with_score,
)
from ipu_course.progress.store import LOCK_SECONDS, Change, load, update

# Notes that could not be written yet. They count in this process, and go to the file with the next note that can be.
_waiting: list[Change] = []
_guard = threading.Lock()


def note_prediction(
    lesson: str, quantity: str, guess: float, result: float, source: str, published: str | None = None
) -> None:
    """Note a guess and the result that was then shown; what is not a finite number is not noted."""

    def change() -> Change:
        told = None if published is None else str(published)
        new = Prediction(str(lesson), str(quantity), _finite(guess), _finite(result), str(source), told)
        return lambda progress: with_prediction(progress, new)

    _note(change)


def note_check(lesson: str, exercise: str, correct: bool) -> None:
    """Note one attempt at an exercise."""

    def change() -> Change:
        names, right = (str(lesson), str(exercise)), bool(correct)
        return lambda progress: with_check(progress, *names, right)

    _note(change)


def note_rung(
    lesson: str, step: str, modelled_epoch_seconds: float | None, published_epoch_seconds: float | None
) -> None:
    """Note a step of the ladder; ``None`` stands for a step without a time: not known, or it does not fit."""

    def change() -> Change:
        modelled = None if modelled_epoch_seconds is None else _finite(modelled_epoch_seconds)
        published = None if published_epoch_seconds is None else _finite(published_epoch_seconds)
        new = Rung(str(lesson), str(step), modelled, published)
        return lambda progress: with_rung(progress, new)

    _note(change)


def note_score(lesson: str, exercise: str, value: float, unit: str, better: str) -> None:
    """Note a score at an exercise, of which the best is kept; ``better`` is "lower" or "higher"."""

    def change() -> Change:
        if better not in ("lower", "higher"):
            raise ValueError(f"better is 'lower' or 'higher', not {better!r}")
        new = Score(str(lesson), str(exercise), _finite(value), str(unit), better)
        return lambda progress: with_score(progress, new)

    _note(change)


def note_quiz(quiz: str, question: str, before: str = "", after: str = "") -> None:
    """Note the letter of an answer to a question of a quiz, given before the lessons or after them."""
    new = QuizAnswer(str(quiz), str(question), str(before), str(after))
    _note(lambda: lambda progress: with_quiz_answer(progress, new))


def read_progress() -> Progress:
    """All that is noted: the file's content and what this process could not write. ``problem`` says what is wrong."""
    try:
        known = load(progress_file())
    except NewerFile:
        known = Progress(problem="The progress file is of a newer release of the course. It is left as it is.")
    except DamagedFile:
        known = Progress(problem="The progress file is damaged. The next answer puts it aside and begins a new one.")
    except Exception as problem:
        known = Progress(problem=f"The progress file cannot be read ({type(problem).__name__}).")
    with _guard:
        unwritten = tuple(_waiting)
    if unwritten and known.problem is None:
        known = replace(known, problem="Answers of this session could not be written to the progress file.")
    return _all_of(unwritten, known)


def _note(make_change: Callable[[], Change]) -> None:
    # Whatever happens to the record, a lesson goes on: so every exception ends here.
    try:
        change = make_change()
        with _guard:
            # One note waits for other kernels' locks; those after it only try.
            wait_seconds = 0.0 if _waiting else LOCK_SECONDS
            _waiting.append(change)
            update(progress_file(), functools.partial(_all_of, tuple(_waiting)), wait_seconds)
            _waiting.clear()
    except Exception:
        return


def _all_of(changes: tuple[Change, ...], progress: Progress) -> Progress:
    for change in changes:
        progress = change(progress)
    return progress


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number
