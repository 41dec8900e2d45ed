"""Agendas and the table of lessons are made from the lessons' own plans; minutes that do not add up are refused."""

from __future__ import annotations

import json
from pathlib import Path

import agenda_text
import pytest
from agenda import (
    AGENDA_FILE,
    AT_MOST,
    Agenda,
    AgendaError,
    Item,
    Session,
    check_agenda,
    minutes_of_items,
    read_agendas,
)
from agenda_text import agenda_markdown, lessons_markdown, put
from hypothesis import given
from hypothesis import strategies as st
from lesson_facts import FactsError, LessonFacts, Measured, facts_of, read_lessons, read_measured

SOURCE = """\
# %% [markdown]
# # Half precision: half the bytes
#
# *Plan 45 minutes, 10 of them for the
# exercises; the notebook itself runs in under one. Before it: lesson 00.*
#
# Why. You will
#
# * halve a model and see
#   what becomes smaller,
# * find the loss that stopped moving.

# %%
import torch

# %% [markdown]
# # Plan 5 minutes, 5 of them for the exercises
"""
KNOWN = {"00_start": "", "01_half": "", "02_later": "look ahead"}
WRITTEN = {
    "00_start": LessonFacts("00_start", "Start", 30, 5, ("check the installation",)),
    "01_half": LessonFacts("01_half", "Half", 45, 10, ("halve a model", "find the loss", "keep it", "climb")),
}
START, HALF, LATER = (Item(name, is_lesson=True) for name in KNOWN)
QUESTIONS = Item("Questions", is_lesson=False, at_least=5)
NINE = 9 * 60


def session(*items: Item, minutes: int, start: int = NINE, day: int = 1) -> Session:
    return Session("Morning", day, start, start + minutes, items)


def agenda(*sessions: Session) -> Agenda:
    return Agenda("a day", "A day", sessions)


# --- what a lesson says about itself


def test_title_plan_and_outcomes_come_from_the_first_cell() -> None:
    facts = facts_of("01_half", SOURCE)
    assert facts == LessonFacts(
        "01_half",
        "Half precision: half the bytes",
        45,
        10,
        ("halve a model and see what becomes smaller", "find the loss that stopped moving"),
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [(("# # Half", "# Half"), "no title"), (("Plan 45", "Plan many"), "Plan N minutes"), (("10 of", "45 of"), "fit")],
)
def test_a_lesson_without_title_or_plan_is_refused(change: tuple[str, str], says: str) -> None:
    with pytest.raises(FactsError, match=says):
        facts_of("01_half", SOURCE.replace(*change))


def test_the_courses_lessons_are_all_known_to_the_agendas() -> None:
    lessons = read_lessons()
    assert lessons
    known = read_agendas(AGENDA_FILE.read_text(encoding="utf-8")).lessons
    assert set(lessons) <= set(known)


# --- measured times


def test_measured_times_are_whole_seconds_and_a_missing_one_is_not_invented(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    assert read_measured(file) == Measured()
    file.write_text(json.dumps({"machine": "m", "command": "c", "seconds": {"00_start": 12.3, "01_half": 0.2}}))
    measured = read_measured(file)
    texts = [measured.text(name) for name in KNOWN]
    assert texts == ["12 s", "1 s", "not measured yet"]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"seconds": {}}', '{"machine": "", "command": "", "seconds": {"a": "b"}}']
)
def test_damaged_measurements_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "measured.json").write_text(content)
    with pytest.raises(FactsError, match=r"measured\.json"):
        read_measured(tmp_path / "measured.json")


# --- minutes that add up


def test_the_flexible_item_takes_what_is_left() -> None:
    assert minutes_of_items(session(START, QUESTIONS, HALF, minutes=90), WRITTEN) == [30, 15, 45]


def test_without_a_flexible_item_the_minutes_must_be_exact() -> None:
    assert minutes_of_items(session(START, HALF, minutes=75), WRITTEN) == [30, 45]
    with pytest.raises(AgendaError, match="lasts 80 minutes, but its items take 75"):
        minutes_of_items(session(START, HALF, minutes=80), WRITTEN)


@pytest.mark.parametrize("minutes", [60, 79, 75 + AT_MOST + 1])
def test_too_little_or_too_much_left_is_refused(minutes: int) -> None:
    with pytest.raises(AgendaError, match="leaves"):
        minutes_of_items(session(START, HALF, QUESTIONS, minutes=minutes), WRITTEN)


def test_exercises_can_be_left_for_later() -> None:
    short = Item("01_half", is_lesson=True, exercises=False)
    assert minutes_of_items(session(short, minutes=35), WRITTEN) == [35]


def test_a_lesson_without_source_has_no_minutes_yet() -> None:
    assert minutes_of_items(session(START, LATER, minutes=75), WRITTEN) is None


@given(
    fixed=st.lists(st.integers(1, 200), min_size=1, max_size=6), length=st.integers(1, 600), least=st.integers(0, 40)
)
def test_items_fill_a_session_exactly_or_it_is_refused(fixed: list[int], length: int, least: int) -> None:
    items = [Item("x", is_lesson=False, minutes=minutes) for minutes in fixed]
    flexible = Item("y", is_lesson=False, at_least=least)
    left = length - sum(fixed)
    if least <= left <= AT_MOST:
        assert minutes_of_items(session(*items, flexible, minutes=length), {}) == [*fixed, left]
    else:
        with pytest.raises(AgendaError):
            minutes_of_items(session(*items, flexible, minutes=length), {})


REFUSED = [
    (agenda(session(START, START, minutes=60)), "stands in it twice"),
    (agenda(session(Item("09_none", is_lesson=True), minutes=60)), "no lesson 09_none"),
    (agenda(session(START, minutes=30), session(HALF, minutes=45, start=NINE + 20)), "begins before"),
    (agenda(session(START, minutes=30, day=2), session(HALF, minutes=45, start=NINE + 60)), "begins before"),
    (agenda(session(minutes=0)), "ends before it begins"),
    (agenda(session(QUESTIONS, QUESTIONS, minutes=20)), "only one item"),
]


@pytest.mark.parametrize(("refused", "says"), REFUSED)
def test_an_agenda_that_cannot_be_kept_is_refused(refused: Agenda, says: str) -> None:
    with pytest.raises(AgendaError, match=says):
        check_agenda(refused, KNOWN, WRITTEN)


FILE = """
[lessons]
00_start = ""
[[agenda]]
name = "a"
title = "A"
[[agenda.session]]
title = "Morning"
start = 09:00:00
end = 10:00:00
items = [{ lesson = "00_start" }, { what = "Questions", at_least = 5 }]
"""


def test_the_file_is_read() -> None:
    (only,) = read_agendas(FILE).agendas
    assert only == Agenda("a", "A", (Session("Morning", 1, NINE, NINE + 60, (Item("00_start", True), QUESTIONS)),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("at_least = 5", "at_last = 5"), "neither a lesson nor"),
        (("at_least = 5", "minutes = 0"), "neither a lesson nor"),
        (("start = 09:00:00", 'start = "nine"'), "no time of day"),
        (("end = 10:00:00", "until = 10:00:00"), "unknown until"),
        (('name = "a"', ""), "lacks 'name'"),
        (("[lessons]", "[lessons"), "not TOML"),
    ],
)
def test_a_mistyped_file_is_refused(change: tuple[str, str], says: str) -> None:
    with pytest.raises(AgendaError, match=says):
        read_agendas(FILE.replace(*change))


# --- the pages


def test_an_agenda_tells_times_breaks_and_measured_seconds() -> None:
    day = agenda(session(START, QUESTIONS, minutes=40), session(LATER, minutes=45, start=NINE + 55))
    text = agenda_markdown(day, WRITTEN, Measured("m", "c", {"00_start": 12.3}))
    assert "| 09:00 | 30 | [00 Start](../notebooks/00_start.ipynb) | 5 | 12 s |" in text
    assert "| 09:30 | 10 | Questions |  |  |" in text
    assert "| 09:40 | 15 | Break | | |" in text
    assert "|  | no plan yet | lesson 02 |  | not measured yet |" in text
    assert text.endswith("2 lessons: 30 minutes, 5 of them for exercises. Without a plan yet: 02.")


def test_exercises_that_are_left_out_do_not_count() -> None:
    short = session(Item("01_half", is_lesson=True, exercises=False), minutes=35)
    text = agenda_markdown(agenda(short), WRITTEN, Measured())
    assert "exercises left for later | none |" in text
    assert text.endswith("1 lessons: 35 minutes, 0 of them for exercises.")


def test_the_lesson_table_takes_the_first_outcomes_where_the_file_says_nothing() -> None:
    written = {**WRITTEN, "02_later": LessonFacts("02_later", "Later", 20, 5, ("not this",))}
    text = lessons_markdown(KNOWN, written, Measured("a laptop", "the tool", {"00_start": 7.6}))
    assert "| [00 Start](notebooks/00_start.ipynb) | check the installation | 30 min | 8 s |" in text
    assert "| halve a model; find the loss; keep it | 45 min | not measured yet |" in text
    assert "| [02 Later](notebooks/02_later.ipynb) | look ahead | 20 min | not measured yet |" in text
    assert "with `the tool` on a laptop" in text


def test_text_outside_of_the_markers_stays() -> None:
    page = "before\n<!-- x: made by `make docs` -->\nold\n<!-- end of x -->\nafter\n"
    new = put(page, "x", "new \\1\n")
    assert new == page.replace("old", "new \\1")
    assert put(new, "x", "new \\1\n") == new


@pytest.mark.parametrize("page", ["", "<!-- end of x -->\n<!-- x: made by `make docs` -->\n"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(AgendaError, match="markers"):
        put(page, "x", "new")


def test_an_unlisted_lesson_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda_text, "read_lessons", lambda: {**WRITTEN})
    with pytest.raises(AgendaError, match="lacks 00_start, 01_half"):
        agenda_text.generated_pages()
