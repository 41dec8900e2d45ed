"""Workshop agendas from docs/workshop_agenda.toml and the lessons' own plans; minutes that do not add up are refused.

A session lasts from `start` to `end` and is filled by its items in order: lessons, which take the minutes that they
plan, things of fixed `minutes`, and at most one thing that takes what is left, if that is `at_least` so much. A lesson
that is not written yet has no minutes; its session is listed without times, and checked when it has.
"""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from lesson_facts import LessonFacts

AGENDA_FILE = Path(__file__).resolve().parents[1] / "docs" / "workshop_agenda.toml"
AT_MOST = 30  # minutes that a session may leave to its flexible item: with more, it should end earlier
# The standard library's reader on Python 3.11 and later; the package it came from on 3.10.
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


class AgendaError(Exception):
    """An agenda that cannot be kept."""


@dataclass(frozen=True)
class Item:
    """Part of a session: a lesson by name (`exercises`: with them), or a thing of its own; None: what is left."""

    what: str
    is_lesson: bool
    exercises: bool = True
    minutes: int | None = None
    at_least: int | None = None


@dataclass(frozen=True)
class Session:
    """A stretch without a break; `start` and `end` in minutes after midnight, `then` names the break after it."""

    title: str
    day: int
    start: int
    end: int
    items: tuple[Item, ...]
    then: str = "Break"


@dataclass(frozen=True)
class Agenda:
    """One workshop; `name` is that of its place in the text."""

    name: str
    title: str
    sessions: tuple[Session, ...]

    def lessons(self) -> list[str]:
        """Return the names of its lessons in order."""
        return [item.what for session in self.sessions for item in session.items if item.is_lesson]


@dataclass(frozen=True)
class AgendaFile:
    """Everything in the file: every lesson of the course with what the README says about it, and the agendas."""

    lessons: dict[str, str]
    agendas: tuple[Agenda, ...]


def read_agendas(text: str) -> AgendaFile:
    """Return the contents of the data file."""
    try:
        data: dict[str, Any] = _toml.loads(text)
        lessons = {str(name): str(does) for name, does in data["lessons"].items()}
        agendas = tuple(
            Agenda(entry["name"], entry["title"], tuple(_session(session) for session in entry["session"]))
            for entry in data["agenda"]
        )
    except KeyError as problem:
        raise AgendaError(f"the agenda file lacks {problem}") from problem
    except _toml.TOMLDecodeError as problem:
        raise AgendaError(f"the agenda file is not TOML: {problem}") from problem
    return AgendaFile(lessons, agendas)


def _session(entry: dict[str, Any]) -> Session:
    unknown = sorted(set(entry) - {"title", "day", "start", "end", "items", "then"})
    if unknown:
        raise AgendaError(f"session {entry.get('title')!r}: unknown {', '.join(unknown)}")
    start, end = _minutes(entry["start"]), _minutes(entry["end"])
    items = tuple(_item(item) for item in entry["items"])
    return Session(entry["title"], entry.get("day", 1), start, end, items, entry.get("then", "Break"))


def _minutes(time: object) -> int:
    if not isinstance(time, datetime.time):
        raise AgendaError(f"{time!r} is no time of day, such as 09:30:00")
    return time.hour * 60 + time.minute


def _item(entry: dict[str, Any]) -> Item:
    if set(entry) in ({"lesson"}, {"lesson", "exercises"}):
        return Item(str(entry["lesson"]), is_lesson=True, exercises=bool(entry.get("exercises", True)))
    if set(entry) == {"what", "minutes"} and isinstance(entry["minutes"], int) and entry["minutes"] > 0:
        return Item(str(entry["what"]), is_lesson=False, minutes=entry["minutes"])
    if set(entry) == {"what", "at_least"} and isinstance(entry["at_least"], int) and entry["at_least"] >= 0:
        return Item(str(entry["what"]), is_lesson=False, at_least=entry["at_least"])
    raise AgendaError(f"{entry} is neither a lesson nor a thing with minutes or at_least")


def check_agenda(agenda: Agenda, known: dict[str, str], written: dict[str, LessonFacts]) -> None:
    """Refuse an agenda that cannot be kept; `known` are all lessons of the course, `written` have a source."""
    lessons = agenda.lessons()
    if unknown := [name for name in lessons if name not in known]:
        raise AgendaError(f"{agenda.title}: there is no lesson {', '.join(unknown)}")
    if twice := [name for name, count in Counter(lessons).items() if count > 1]:
        raise AgendaError(f"{agenda.title}: {', '.join(twice)} stands in it twice")
    for before, after in pairwise(agenda.sessions):
        if (before.day, before.end) > (after.day, after.start):
            raise AgendaError(f"{agenda.title}: {after.title!r} begins before {before.title!r} has ended")
    for session in agenda.sessions:
        try:
            minutes_of_items(session, written)
        except AgendaError as problem:
            raise AgendaError(f"{agenda.title}: {problem}") from None


def minutes_of_items(session: Session, written: dict[str, LessonFacts]) -> list[int] | None:
    """Return the minutes of each item, None when a lesson of the session is not written yet.

    Raises AgendaError when they do not fill the session exactly.
    """
    length = session.end - session.start
    if length <= 0:
        raise AgendaError(f"{session.title!r} ends before it begins")
    if sum(item.at_least is not None for item in session.items) > 1:
        raise AgendaError(f"{session.title!r}: only one item can take what is left")
    if any(item.is_lesson and item.what not in written for item in session.items):
        return None
    fixed = [_fixed_minutes(item, written) for item in session.items]
    left = length - sum(fixed)
    flexible = next((item for item in session.items if item.at_least is not None), None)
    if flexible is None:
        if left != 0:
            raise AgendaError(f"{session.title!r} lasts {length} minutes, but its items take {length - left}")
        return fixed
    assert flexible.at_least is not None
    if not flexible.at_least <= left <= AT_MOST:
        raise AgendaError(
            f"{session.title!r} leaves {left} minutes to {flexible.what!r}, which takes"
            f" {flexible.at_least} to {AT_MOST}: {length} minutes are {max(flexible.at_least - left, left - AT_MOST)}"
            f" too {'few' if left < flexible.at_least else 'many'}"
        )
    return [left if item is flexible else minutes for item, minutes in zip(session.items, fixed, strict=True)]


def _fixed_minutes(item: Item, written: dict[str, LessonFacts]) -> int:
    if item.is_lesson:
        facts = written[item.what]
        return facts.minutes if item.exercises else facts.minutes - facts.exercise_minutes
    return item.minutes or 0
