"""The answers that a lesson's checks must turn down or accept: answers.toml in the lesson's folder.

README.md beside this file describes the format.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from notebook_build.errors import SourceError
from notebook_build.exercise import Exercise
from notebook_build.lesson import LessonSource

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# The tables of one exercise, with the keys that each of their entries has (`setup` may come on top).
KEYS = {"wrong": {"name", "answer", "hint"}, "right": {"name", "answer"}}


@dataclass(frozen=True)
class TriedAnswer:
    """What a learner might write in place of the solution region.

    `hint` is an excerpt of the hint that must meet it, and empty for another right answer.
    """

    name: str
    answer: str
    hint: str = ""
    setup: str = ""

    def cell(self, exercise: Exercise) -> str:
        """Return the exercise's cell with this answer, indented as the region is."""
        first_line = exercise.starter.splitlines()[0]
        indent = first_line[: len(first_line) - len(first_line.lstrip())]
        answer = textwrap.indent(textwrap.dedent(self.answer).strip("\n"), indent)
        setup = f"{self.setup.strip()}\n" if self.setup else ""
        return setup + exercise.before + answer + exercise.after


def file_of(lesson: LessonSource) -> Path:
    """Return the path of a lesson's answers, which may not exist yet."""
    return lesson.source.parent / "answers.toml"


def read_answers(lesson: LessonSource) -> dict[int, list[TriedAnswer]]:
    """Return a lesson's answers by the number of the exercise; SourceError where the file breaks a rule."""
    file = file_of(lesson)
    found: dict[int, list[TriedAnswer]] = {}
    for table in _tables(file):
        number = table.pop("number", None)
        if not isinstance(number, int) or number in found:
            raise SourceError(f"{named(file)}: every [[exercise]] has a number of its own")
        if not isinstance(table.pop("modelled", False), bool):
            raise SourceError(f"{named(file)}: exercise {number}: modelled is true or false")
        found[number] = answers_in(table, f"{named(file)}: exercise {number}")
    return found


def asks_the_model(lesson: LessonSource) -> bool:
    """Tell whether a check of the lesson compares an answer with what the IPU Model says."""
    return any(table.get("modelled", False) for table in _tables(file_of(lesson)))


def named(file: Path) -> str:
    """Name a file of answers with the folder of its lesson."""
    return f"{file.parent.name}/{file.name}"


def _tables(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        content = _toml.loads(file.read_text(encoding="utf-8"))
    except _toml.TOMLDecodeError as problem:
        raise SourceError(f"{named(file)}: {problem}") from problem
    if set(content) != {"exercise"}:
        raise SourceError(f"{named(file)}: it holds [[exercise]] tables and nothing else")
    return list(content["exercise"])


def answers_in(table: dict[str, list[dict[str, object]]], where: str) -> list[TriedAnswer]:
    """Return the answers to one exercise, checked."""
    if not set(table) <= set(KEYS):
        raise SourceError(f"{where}: it has a number, [[exercise.wrong]] and [[exercise.right]] tables")
    answers = [tried_answer(entry, kind, where) for kind, entries in table.items() for entry in entries]
    names = [answer.name for answer in answers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(f"{where}: two answers are called {', '.join(twice)}")
    return answers


def tried_answer(entry: dict[str, object], kind: str, where: str) -> TriedAnswer:
    """Return one entry of the file, checked."""
    if set(entry) - {"setup"} != KEYS[kind]:
        raise SourceError(f"{where}: a {kind} answer has {', '.join(sorted(KEYS[kind]))}, and maybe a setup")
    texts = {key: value for key, value in entry.items() if isinstance(value, str) and value.strip()}
    if len(texts) < len(entry):
        raise SourceError(f"{where}: name, answer, hint and setup are texts, and none is empty")
    return TriedAnswer(**texts)
