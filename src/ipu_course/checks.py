"""Checks of exercises: they print what is right or a hint, and never raise."""

from __future__ import annotations

from typing import Callable, Optional

from ipu_course.exercises import _letting_errors_through, letting_errors_through
from ipu_course.progress import note_check

__all__ = ["check", "letting_errors_through", "number_hint", "whole_number_hint"]

UNANSWERED = "not attempted yet"

FindHint = Callable[[], Optional[str]]
"""Looks at an answer: a hint that names the misunderstanding, or ``None`` when the answer is right."""


def check(lesson: str, exercise: str, answer: dict[str, object], find_hint: FindHint, praise: str) -> None:
    """Print the verdict on an exercise of a ``lesson``, and note it in the learner's progress.

    ``answer`` maps the names that the learner fills in to their values; ``...`` stands for an open one.
    ``find_hint`` is only asked when none is open.
    """
    still_open = [name for name, value in answer.items() if value is ...]
    if still_open:
        print(f"{exercise}: {_open(still_open, answer)}")
        return
    hint = _hint(find_hint)
    print(f"{exercise}: {f'correct. {praise}' if hint is None else f'not yet. {hint}'}")
    note_check(lesson, exercise, hint is None)


def _open(names: list[str], answer: dict[str, object]) -> str:
    return UNANSWERED if len(names) == len(answer) else f"still to fill in: {', '.join(names)}"


def _hint(find_hint: FindHint) -> str | None:
    """The hint; an answer that the check itself cannot handle gets the error as its hint."""
    try:
        return find_hint()
    except Exception as problem:  # whatever a learner's object may raise, a check does not
        if _letting_errors_through.get():
            raise
        return f"The check could not use your answer ({type(problem).__name__}: {problem})."


def number_hint(name: str, value: object) -> str | None:
    """A hint when ``value`` is not a number, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{name} is a number; you wrote {value!r}."
    return None


def whole_number_hint(name: str, value: object) -> str | None:
    """A hint when ``value`` is not a whole number of at least 1, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return f"{name} is a whole number of at least 1; you wrote {value!r}."
    return None
