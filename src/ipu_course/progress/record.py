"""The record of a learner's answers, and the rules by which a new answer joins it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Sequence, TypeVar

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Prediction:
    """One quantity that the learner guessed before it was shown.

    ``guess`` and ``result`` are those of the first time, in the unit that ``quantity`` names. ``source`` says what
    kind of result it is (modelled, computed, measured); ``published`` is the sentence beside it, with its source.
    ``later_guesses`` were made after the result had been seen.
    """

    lesson: str
    quantity: str
    guess: float
    result: float
    source: str
    published: str | None = None
    later_guesses: tuple[float, ...] = ()

    @property
    def factor_off(self) -> float | None:
        """How many times the larger of guess and result is the smaller, or ``None`` where no ratio exists."""
        if self.guess == self.result:
            return 1.0
        smaller, larger = sorted((abs(self.guess), abs(self.result)))
        if smaller == 0 or (self.guess < 0) != (self.result < 0):
            return None
        factor = larger / smaller
        return factor if math.isfinite(factor) else None


@dataclass(frozen=True)
class ExerciseRecord:
    """One exercise that the learner tried: ``attempts`` in all; ``solved_at`` is the number of the first right one."""

    lesson: str
    exercise: str
    attempts: int
    solved_at: int | None = None

    @property
    def correct(self) -> bool:
        """Whether any attempt was right: a wrong one afterwards takes nothing away."""
        return self.solved_at is not None


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: seconds an epoch as modelled for this learner and as published."""

    lesson: str
    step: str
    modelled_epoch_seconds: float | None
    published_epoch_seconds: float | None


@dataclass(frozen=True)
class Score:
    """The learner's best value at an exercise that keeps a score; ``better`` is "lower" or "higher"."""

    lesson: str
    exercise: str
    value: float
    unit: str
    better: str


@dataclass(frozen=True)
class QuizAnswer:
    """The letters that a learner chose for one question of a quiz, before the lessons and after them.

    ``before`` is the first answer given; ``after`` is the latest. Each is empty as long as there is none.
    """

    quiz: str
    question: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Progress:
    """All that a learner has answered, each kind in the order of the first time.

    ``problem`` is a sentence for the learner when the file could not be read or written, else ``None``.
    """

    predictions: tuple[Prediction, ...] = ()
    exercises: tuple[ExerciseRecord, ...] = ()
    rungs: tuple[Rung, ...] = ()
    scores: tuple[Score, ...] = ()
    quiz_answers: tuple[QuizAnswer, ...] = ()
    problem: str | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing has been answered yet."""
        return not (self.predictions or self.exercises or self.rungs or self.scores or self.quiz_answers)


def with_prediction(progress: Progress, new: Prediction) -> Progress:
    """``progress`` with a guess: the first stands with its result; another one later is only listed after it."""
    known = _find(progress.predictions, lambda old: (old.lesson, old.quantity) == (new.lesson, new.quantity))
    if known is None:
        return replace(progress, predictions=(*progress.predictions, new))
    old = progress.predictions[known]
    latest = old.later_guesses[-1] if old.later_guesses else old.guess
    if new.guess == latest:
        return progress  # the same cell, run again
    updated = replace(old, later_guesses=(*old.later_guesses, new.guess))
    return replace(progress, predictions=_put(progress.predictions, known, updated))


def with_check(progress: Progress, lesson: str, exercise: str, correct: bool) -> Progress:
    """``progress`` with one more attempt at an exercise: once solved, it stays solved."""
    known = _find(progress.exercises, lambda old: (old.lesson, old.exercise) == (lesson, exercise))
    if known is None:
        first = ExerciseRecord(lesson, exercise, attempts=1, solved_at=1 if correct else None)
        return replace(progress, exercises=(*progress.exercises, first))
    old = progress.exercises[known]
    attempts = old.attempts + 1
    solved_at = attempts if correct and old.solved_at is None else old.solved_at
    updated = replace(old, attempts=attempts, solved_at=solved_at)
    return replace(progress, exercises=_put(progress.exercises, known, updated))


def with_rung(progress: Progress, new: Rung) -> Progress:
    """``progress`` with a step of the ladder: newer seconds replace older ones, but none (no engine) replaces none."""
    known = _find(progress.rungs, lambda old: old.step == new.step)
    if known is None:
        return replace(progress, rungs=(*progress.rungs, new))
    old = progress.rungs[known]
    updated = replace(
        old,
        modelled_epoch_seconds=_newer(old.modelled_epoch_seconds, new.modelled_epoch_seconds),
        published_epoch_seconds=_newer(old.published_epoch_seconds, new.published_epoch_seconds),
    )
    return replace(progress, rungs=_put(progress.rungs, known, updated))


def with_score(progress: Progress, new: Score) -> Progress:
    """``progress`` with a score, where it is the first or the best one at its exercise."""
    known = _find(progress.scores, lambda old: (old.lesson, old.exercise) == (new.lesson, new.exercise))
    if known is None:
        return replace(progress, scores=(*progress.scores, new))
    old = progress.scores[known]
    same_kind = (old.unit, old.better) == (new.unit, new.better)
    if same_kind and (old.value <= new.value if new.better == "lower" else old.value >= new.value):
        return progress
    return replace(progress, scores=_put(progress.scores, known, new))


def with_quiz_answer(progress: Progress, new: QuizAnswer) -> Progress:
    """``progress`` with an answer: what was chosen first before the lessons stays, as it is what they started from."""
    known = _find(progress.quiz_answers, lambda old: (old.quiz, old.question) == (new.quiz, new.question))
    if known is None:
        return replace(progress, quiz_answers=(*progress.quiz_answers, new))
    old = progress.quiz_answers[known]
    updated = replace(old, before=old.before or new.before, after=new.after or old.after)
    return replace(progress, quiz_answers=_put(progress.quiz_answers, known, updated))


def _find(entries: Sequence[Entry], matches: Callable[[Entry], bool]) -> int | None:
    return next((index for index, entry in enumerate(entries) if matches(entry)), None)


def _put(entries: tuple[Entry, ...], index: int, entry: Entry) -> tuple[Entry, ...]:
    return (*entries[:index], entry, *entries[index + 1 :])


def _newer(old: float | None, new: float | None) -> float | None:
    return old if new is None else new
