"""Predictions: a learner writes down a number first, then sees it beside the result."""

from __future__ import annotations

from typing import Union

Number = Union[int, float]


class Prediction:
    """A learner's number for a quantity, or ``...`` as long as there is none.

    Raises ``TypeError`` for anything else.
    """

    def __init__(self, quantity: str, guess: object) -> None:
        if guess is not ... and (isinstance(guess, bool) or not isinstance(guess, (int, float))):
            raise TypeError(f"a guess is a number, such as 12 or 0.5, not {guess!r}")
        self.quantity = quantity
        self.guess = guess

    def reveal(self, result: Number, source: str = "computed", published: str | None = None) -> None:
        """Print the guess beside the result; ``source`` says where the result is from.

        ``published`` is somebody's hardware result with its source, shown in a line of its own.
        """
        print(self.quantity)
        print(f"  your guess: {self._guess_and_distance(result)}")
        print(f"  {source}: {_text(result)}")
        if published is not None:
            print(f"  published: {published}")

    def _guess_and_distance(self, result: Number) -> str:
        guess = self.guess
        if not isinstance(guess, (int, float)):
            return "none yet (write a number in place of the dots)"
        if guess == result:
            return f"{_text(guess)}, exactly right"
        if guess * result <= 0:
            return f"{_text(guess)}, too {'low' if guess < result else 'high'}"
        factor = max(guess / result, result / guess)
        return f"{_text(guess)}, too {'low' if guess < result else 'high'} by a factor of {factor:.3g}"


def predict(quantity: str, guess: object) -> Prediction:
    """Note a ``guess`` for a ``quantity``: a number, or ``...`` for none yet. ``reveal`` shows it."""
    return Prediction(quantity, guess)


def _text(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
