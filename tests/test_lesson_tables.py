"""The tables of lessons in README.md and docs/workshop.md say what the lessons' sources say."""

from __future__ import annotations

import re

import pytest
from lesson_tables import README, WORKSHOP, outcomes, with_agendas, with_readme_table

from ipu_course.lesson_folders import LessonFolder, lesson_folders

TO_REFRESH = "`python tools/lesson_tables.py` writes the table anew"
HEAD = "| time | minutes | what | for exercises | the notebook runs in (measured) |\n|---|---|---|---|---|\n"


@pytest.mark.parametrize("lesson", lesson_folders(), ids=lambda lesson: lesson.number)
def test_every_lesson_plans_its_minutes_and_lists_its_outcomes(lesson: LessonFolder) -> None:
    assert 0 < lesson.exercise_minutes < lesson.minutes
    assert len(outcomes(lesson)) >= 2


def test_the_readme_has_a_row_for_every_lesson() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_readme_table(readme) == readme, TO_REFRESH


def test_the_agendas_follow_the_lessons_plans() -> None:
    page = WORKSHOP.read_text(encoding="utf-8")
    assert with_agendas(page) == page, TO_REFRESH


def test_the_times_of_an_agenda_are_counted_from_its_first_session() -> None:
    first = lesson_folders()[0]
    rows = (
        "| 09:00 to 00:00 | | **A** | | |\n"
        "| 00:00 | 1 | [00 Old title](../notebooks/old.ipynb) | 1 | 1 s |\n"
        "| 00:00 | 20 | Questions |  |  |\n"
        "| 00:00 | 15 | Break | | |\n"
        "| 00:00 to 00:00 | | **B** | | |\n"
        "| 00:00 | 10 | Close |  |  |\n"
    )
    # From 09:00 on: the lesson, 20 minutes, a break of 15, then 10.
    end = 9 * 60 + first.minutes + 20
    found = re.findall(r"^\| (\d\d:\d\d(?: to \d\d:\d\d)?) \|", with_agendas(HEAD + rows), flags=re.MULTILINE)
    times = [
        f"{each // 60:02d}:{each % 60:02d}" for each in (540, end, 540, end - 20, end, end + 15, end + 25, end + 15)
    ]
    assert found == [f"{times[0]} to {times[1]}", *times[2:5], f"{times[5]} to {times[6]}", times[7]]
