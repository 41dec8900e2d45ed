"""Checks of exercises: they print what is right or a hint, and never raise."""

from __future__ import annotations

from typing import Callable, Optional

UNANSWERED = "not attempted yet"

FindHint = Callable[[], Optional[str]]
"""Looks at an answer: a hint that names the misunderstanding, or ``None`` when the answer is right."""


def check(exercise: str, answer: dict[str, object], find_hint: FindHint, praise: str) -> None:
    """Print the verdict on an exercise.

    ``answer`` maps the names that the learner fills in to their values; ``...`` stands for an open one.
    ``find_hint`` is only asked when none is open.
    """
    print(f"{exercise}: {_verdict(answer, find_hint, praise)}")


def _verdict(answer: dict[str, object], find_hint: FindHint, praise: str) -> str:
    still_open = [name for name, value in answer.items() if value is ...]
    if len(still_open) == len(answer):
        return UNANSWERED
    if still_open:
        return f"still to fill in: {', '.join(still_open)}"
    hint = find_hint()
    return f"correct. {praise}" if hint is None else f"not yet. {hint}"


def whole_number_hint(name: str, value: object) -> str | None:
    """A hint when ``value`` is not a whole number of at least 1, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return f"{name} is a whole number of at least 1; you wrote {value!r}."
    return None
