"""A lesson as its notebook uses it: predictions, exercises, explorers and the ladder so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from ipu_course import engine
from ipu_course.exercises import Exercise, as_number, judge
from ipu_course.ladder import climb, published_ladder, show_steps
from ipu_course.lesson_folders import lesson_folder
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.progress import note_check, note_prediction, note_rung, note_score
from ipu_course.published import PublishedFigure, published_figure
from ipu_course.rest_of_cell import hide_rest_of_cell
from ipu_course.takeaways import takeaway_of

if TYPE_CHECKING:
    from ipu_course.explorers import Explorer

__all__ = ["Lesson", "Prediction", "is_learners_copy", "wait_for_guesses"]

WAITS = (
    "  This result waits for your guess, and so does the rest of this cell: write a number in place of ... where you\n"
    "  predict it, run that cell, and then run this one again. With None in place of ... you see the result without\n"
    "  a guess."
)
_waiting_for_guesses = False


def wait_for_guesses(wait: bool = True) -> None:
    """Let every ``reveal`` in this kernel wait for a guess, as in the learner's copy of a notebook."""
    global _waiting_for_guesses
    _waiting_for_guesses = wait


def is_learners_copy() -> bool:
    """Tell whether this kernel runs a learner's copy of a notebook."""
    return _waiting_for_guesses


class Prediction:
    """A learner's guess for a quantity, whose result ``reveal`` shows.

    ``guess`` is a number, ``...`` as long as there is none, or ``None`` to see the result without one.
    """

    def __init__(self, lesson: Lesson, quantity: str, guess: object) -> None:
        self.lesson = lesson
        self.quantity = quantity
        self.guess = as_number(guess)
        self.waits = guess is ...
        if self.guess is None and guess is not ... and guess is not None:
            self.waits = True
            print(f"A guess is a number, such as 12 or 0.5; you wrote {guess!r}.")

    def reveal(self, result: object, source: str = "computed", published: str | None = None) -> None:
        """Print the guess and the result; ``source`` says what kind of result it is, such as "modelled".

        ``published`` is the key of a published figure of the lesson. Without a guess, the learner's copy prints how
        to give one instead, and hides what the rest of the cell would show. Raises ``TypeError`` for a result that is
        no number.
        """
        print(self.quantity)
        if self.waits and _waiting_for_guesses:
            print(WAITS)
            hide_rest_of_cell()
            return
        number = _result(result)
        print(f"  your guess: {self._compared(number)}")
        print(f"  {source}: {NOT_MODELLED if number is None else _text(number)}")
        beside = None if published is None else self.lesson.published(published).line
        if beside is not None:
            print(f"  {beside}")
        if self.guess is not None and number is not None:
            note_prediction(self.lesson.number, self.quantity, self.guess, number, source, beside)

    def _compared(self, result: float | None) -> str:
        guess = self.guess
        if guess is None:
            return "none yet (write a number in place of the dots)" if self.waits else "none"
        if result is None:
            return _text(guess)
        if guess == result:
            return f"{_text(guess)}, exactly right"
        direction = "too low" if guess < result else "too high"
        if guess * result <= 0:
            return f"{_text(guess)}, {direction}"
        return f"{_text(guess)}, {direction} by a factor of {max(guess / result, result / guess):.3g}"


class Lesson:
    """The front of one lesson, named by its number, such as "02"; exercises and explorers count from 1."""

    def __init__(self, number: str, exercises: Sequence[Exercise] = (), explorers: Sequence[Explorer] = ()) -> None:
        self.number = number
        self.exercises = tuple(exercises)
        self.explorers = tuple(explorers)

    @property
    def folder(self) -> Path:
        """The folder that holds all of this lesson."""
        return lesson_folder(self.number)

    def predict(self, quantity: str, guess: object) -> Prediction:
        """Return a prediction of a ``quantity``: a number, or ``...`` for none yet."""
        return Prediction(self, quantity, guess)

    def published(self, key: str) -> PublishedFigure:
        """Return a published figure of this lesson. Raises ``ValueError`` for an unknown key."""
        return published_figure(self.folder, key)

    def takeaway(self, key: str) -> str:
        """Return a caption of this lesson that would give a prediction away if it stood in the notebook's source.

        Raises ``ValueError`` for an unknown key.
        """
        return takeaway_of(self.folder, key)

    def tell(self, key: str) -> None:
        """Show a longer text from the same file as ``takeaway``, in Markdown, such as what a figure of the cell means.

        Raises ``ValueError`` for an unknown key.
        """
        from ipu_course.figures.shown import display_raw  # imports matplotlib

        words = self.takeaway(key)
        display_raw({"text/markdown": words, "text/plain": words}, {})

    def check(self, number: int, *answers: object, using: object = None) -> None:
        """Print the verdict on the answers to an exercise, and note it in the learner's progress.

        ``using`` is what the check needs besides, such as a modelled program.
        """
        exercise = _numbered(self.exercises, number, "exercise")
        verdict = judge(exercise, answers, using)
        print(f"Exercise {number}: {verdict.text}")
        if verdict.correct is not None:
            note_check(self.number, f"Exercise {number}", verdict.correct)
        if verdict.points is not None:
            note_score(self.number, f"Exercise {number}", *verdict.points)

    def explore(self, *subjects: object, explorer: int = 1, **settings: object) -> None:
        """Show an explorer of ``subjects``, such as a modelled program; ``settings`` replace its first values."""
        chosen = _numbered(self.explorers, explorer, "explorer")
        if any(subject is NOT_MODELLED for subject in subjects):
            print(engine.NOT_HERE)
            return
        chosen.show(*subjects, **settings)

    def show_ladder(self, upto: str) -> None:
        """Show the ladder's steps up to the one named ``upto``: seconds per epoch, modelled beside published.

        Raises ``ValueError`` for a step that the ladder does not have.
        """
        names = [step.name for step in published_ladder().steps]
        if upto not in names:
            raise ValueError(f"the ladder has no step {upto!r}; it has {', '.join(map(repr, names))}")
        if not engine.is_available():
            print(engine.NOT_HERE)
            return
        steps = climb(names[: names.index(upto) + 1])
        show_steps(steps)
        for step in steps:
            note_rung(self.number, step.published.name, step.epoch_seconds, step.published.epoch_seconds)


def _numbered(things: Sequence[Any], number: int, kind: str) -> Any:
    if not 1 <= number <= len(things):
        raise ValueError(f"there is no {kind} {number}: this lesson has {len(things)}")
    return things[number - 1]


def _result(result: object) -> float | None:
    number = as_number(result)
    if number is None and result is not None and result is not NOT_MODELLED:
        raise TypeError(f"a result is a number, None or NOT_MODELLED, not {result!r}")
    return number


def _text(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
