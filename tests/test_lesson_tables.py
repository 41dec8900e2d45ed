"""The tables of lessons in README.md and docs/workshop.md say what the lessons plan, and their times add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

from notebooks_support import LESSONS

from notebook_build.lesson import NOTEBOOKS

# The first cell of a lesson: "*Plan 60 minutes, 9 of them for the exercises; ...", line breaks where they fall.
PLAN = re.compile(r"Plan (\d+) minutes, (\d+) of them for the exercises")
LINK = re.compile(r"\[(\d\d) .*\]\((?:\.\./)?notebooks/(\w+)\.ipynb\)(, exercises left for later)?")
PLANS = {
    lesson.name: tuple(map(int, found.groups()))
    for lesson in LESSONS
    if (found := PLAN.search(re.sub(r"\n# ?", " ", lesson.source.read_text(encoding="utf-8"))))
}
SECONDS = json.loads((NOTEBOOKS / "measured.json").read_text(encoding="utf-8"))["seconds"]


def rows_of(page: Path) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_every_lesson_has_a_plan_and_a_row_in_the_readme(project: Path) -> None:
    rows = {match[2]: row for row in rows_of(project / "README.md") if (match := LINK.match(row[0]))}
    assert list(rows) == [lesson.name for lesson in LESSONS] == list(PLANS)
    for name, (*_, minutes, seconds) in rows.items():
        assert minutes == f"{PLANS[name][0]} min"
        assert seconds == f"{SECONDS[name]:.0f} s"


def agenda_rows(project: Path) -> list[list[str]]:
    return [row for row in rows_of(project / "docs" / "workshop.md") if len(row) == 5]


def test_lessons_of_the_agendas_take_the_minutes_that_they_plan(project: Path) -> None:
    rows = [(row, match) for row in agenda_rows(project) if (match := LINK.match(row[2]))]
    assert rows
    for (_, minutes, _, exercises, seconds), match in rows:
        planned, of_them = PLANS[match[2]]
        wanted = (planned - of_them, "none") if match[3] else (planned, str(of_them))
        assert (int(minutes), exercises, seconds) == (*wanted, f"{SECONDS[match[2]]:.0f} s"), match[0]


def test_what_the_agendas_list_follows_without_a_gap(project: Path) -> None:
    """A session's row says when it begins and ends; each row after it, a break too, begins where the last one ended."""
    now, end, sessions = 0, 0, 0
    for time, minutes, *_ in agenda_rows(project):
        if span := re.fullmatch(r"(\d\d):(\d\d) to (\d\d):(\d\d)", time):
            begins, end = (60 * int(span[each]) + int(span[each + 1]) for each in (1, 3))
            assert now in (0, begins), time
            now, sessions = begins, sessions + 1
        elif re.fullmatch(r"\d\d:\d\d", time):
            assert now == 60 * int(time[:2]) + int(time[3:]), time
            now += int(minutes)
            assert now <= end or now - int(minutes) == end, f"{time}: after the session's end"
        else:
            now = 0  # The head of another table.
    assert sessions >= 3
