"""The questions of a quiz, from its data file: one right option each, the others are usual misconceptions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LETTERS = "abcd"


@dataclass(frozen=True)
class Question:
    """One question; ``right`` is the letter of its right option, ``lesson`` the number of the one that explains it."""

    key: str
    question: str
    options: tuple[str, ...]
    right: str
    why: str
    lesson: str

    def option(self, letter: str) -> str:
        """Return an option with its letter."""
        return f"{letter}) {self.options[LETTERS.index(letter)]}"


@lru_cache(maxsize=None)
def questions(quiz: str) -> tuple[Question, ...]:
    """Return the questions of a quiz, such as "speed". Raises ``ValueError`` for a quiz that there is not."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    if quiz not in known:
        raise ValueError(f"there is no quiz {quiz!r}; there is {', '.join(map(repr, known))}")
    entries = json.loads((FOLDER / f"{quiz}.json").read_text(encoding="utf-8"))
    return tuple(Question(**{**entry, "options": tuple(entry["options"])}) for entry in entries)
