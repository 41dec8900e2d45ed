"""A lesson as its notebook uses it: predictions before results, and the ladder so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from ipu_course import engine
from ipu_course.ladder import climb, published_ladder, show_steps
from ipu_course.progress import note_prediction, note_rung

if TYPE_CHECKING:
    from ipu_course.ladder import ModelledStep

Number = Union[int, float]


class Prediction:
    """A learner's number for a quantity, or ``...`` as long as there is none.

    Raises ``TypeError`` for anything else.
    """

    def __init__(self, lesson: str, quantity: str, guess: object) -> None:
        if guess is not ... and (isinstance(guess, bool) or not isinstance(guess, (int, float))):
            raise TypeError(f"a guess is a number, such as 12 or 0.5, not {guess!r}")
        self.lesson = lesson
        self.quantity = quantity
        self.guess = guess

    def reveal(self, result: Number | None, source: str = "computed", published: str | None = None) -> None:
        """Print the guess beside the result; ``source`` says where the result is from.

        ``published`` is somebody's hardware result with its source, shown in a line of its own. A result of
        ``None`` is one that only the IPU Model could give, where there is none. Raises ``TypeError`` for
        results that are no numbers.
        """
        if result is not None and (isinstance(result, bool) or not isinstance(result, (int, float))):
            raise TypeError(f"a result is a number or None, not {result!r}")
        print(self.quantity)
        print(f"  your guess: {self._guess_and_distance(result)}")
        print(f"  {source}: {engine.NONE_HERE if result is None else _text(result)}")
        if published is not None:
            print(f"  published: {published}")
        if isinstance(self.guess, (int, float)) and result is not None:
            note_prediction(self.lesson, self.quantity, self.guess, result, source, published)

    def _guess_and_distance(self, result: Number | None) -> str:
        guess = self.guess
        if not isinstance(guess, (int, float)):
            return "none yet (write a number in place of the dots)"
        if result is None:
            return _text(guess)
        if guess == result:
            return f"{_text(guess)}, exactly right"
        if guess * result <= 0:
            return f"{_text(guess)}, too {'low' if guess < result else 'high'}"
        factor = max(guess / result, result / guess)
        return f"{_text(guess)}, too {'low' if guess < result else 'high'} by a factor of {factor:.3g}"


class Lesson:
    """One lesson, named by its number, such as "02"."""

    def __init__(self, number: str) -> None:
        self.number = number

    def predict(self, quantity: str, guess: object) -> Prediction:
        """Note a ``guess`` for a ``quantity``: a number, or ``...`` for none yet. ``reveal`` shows it."""
        return Prediction(self.number, quantity, guess)

    def show_ladder(self, upto: str) -> None:
        """Show the ladder's steps up to the one named ``upto``: seconds an epoch, modelled beside published.

        Raises ``ValueError`` for a step that the ladder does not have.
        """
        names = [step.name for step in published_ladder().steps]
        if upto not in names:
            raise ValueError(f"the ladder has no step {upto!r}; it has {', '.join(map(repr, names))}")
        wanted = names[: names.index(upto) + 1]
        if not engine.is_available():
            print(engine.NOT_HERE)
            return
        steps = climb(wanted)
        show_steps(steps)
        for step in steps:
            self._note(step)

    def _note(self, step: ModelledStep) -> None:
        note_rung(self.number, step.published.name, step.epoch_seconds, step.published.epoch_seconds)


def _text(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
