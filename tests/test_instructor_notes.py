"""The minute-by-minute tables of the instructor's notes add up to the lessons' plans and hold their exercises."""

from __future__ import annotations

import re

import pytest
from lesson_words import notes, text

from ipu_course.lesson_folders import LessonFolder, lesson_folders

ROW = re.compile(r"\| (\d+) to (\d+) \| ([^|]*)\|")
EXERCISE = re.compile(r"\*\*Exercise (\d+)\*\* \((\d+) min\)")
NAMED = re.compile(r"[Ee]xercises? \d(?: \(\d+\))?(?:(?:, | and )\d(?: \(\d+\))?)*")
each_lesson = pytest.mark.parametrize("lesson", lesson_folders(), ids=lambda lesson: lesson.number)


def _rows(lesson: LessonFolder) -> list[tuple[int, int, str]]:
    """Return the rows of the notes' table: first and last minute, and what happens."""
    return [(int(first), int(last), what) for first, last, what in ROW.findall(notes(lesson.slug))]


def _named(words: str) -> list[tuple[int, int | None]]:
    """Return the exercises that ``words`` name, each with its minutes where they stand in brackets."""
    found = re.findall(r"(\d)(?: \((\d+)\))?", " ".join(NAMED.findall(words)))
    return [(int(number), int(minutes) if minutes else None) for number, minutes in found]


def _planned(lesson: LessonFolder) -> dict[int, int]:
    return {int(number): int(minutes) for number, minutes in EXERCISE.findall(text(lesson.number))}


@each_lesson
def test_the_rows_follow_each_other_from_the_first_minute_to_the_plan_s_last(lesson: LessonFolder) -> None:
    rows = _rows(lesson)
    starts, ends = [first for first, _, _ in rows], [last for _, last, _ in rows]
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == lesson.minutes


@each_lesson
def test_the_rows_name_every_exercise_once_and_leave_time_for_it(lesson: LessonFolder) -> None:
    planned, named = _planned(lesson), []
    assert sum(planned.values()) == lesson.exercise_minutes
    for first, last, what in _rows(lesson):
        here = _named(what)
        assert all(minutes in (None, planned[number]) for number, minutes in here), what
        assert sum(planned[number] for number, _ in here) <= last - first, what
        named += [number for number, _ in here]
    assert named == sorted(planned)


@each_lesson
def test_the_notes_name_only_exercises_of_the_lesson(lesson: LessonFolder) -> None:
    assert {number for number, _ in _named(notes(lesson.slug))} <= set(_planned(lesson))
