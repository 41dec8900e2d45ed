"""The leaderboard of a room: what a learner hands in, and the page that is made of all of it."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.errors import CourseError
from ipu_course.exercises import Exercise, Points
from ipu_course.lesson import Lesson
from ipu_course.programs.command_line import main
from ipu_course.programs.report.leaderboard import leaderboard_page, prediction_rows, rankings, solved_rows
from ipu_course.programs.report.page import report_page
from ipu_course.programs.report.result_file import LearnerResult, read_result, result_of, to_text
from ipu_course.progress import Score, note_check, note_prediction, note_quiz, note_score, read_progress
from ipu_course.quiz.questions import questions


def placed(name: str, value: float, better: str = "lower", factors: tuple[float, ...] = ()) -> LearnerResult:
    """The result of a learner with one score."""
    return LearnerResult(name, 1, (Score("06", "Exercise 2", value, "ms a call", better),), factors)


@pytest.fixture
def answered(records: Path) -> Path:
    note_check("06", "Exercise 2", True)
    note_prediction("06", "calls a second", 10, 15, "modelled")
    note_score("06", "Exercise 2", 56.5, "ms a call", "lower")
    return records


def test_a_result_is_small_and_holds_no_more_than_it_says(
    answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    assert main(["report", "--export", str(file), "--name", " Ada "]) == 0
    text = file.read_text()
    assert set(json.loads(text)) == {"format", "version", "name", "solved", "scores", "factors_off"}
    for private in (str(tmp_path), str(Path.home()), socket.gethostname(), getpass.getuser(), "calls a second"):
        assert private not in text
    assert read_result(file) == placed("Ada", 56.5, factors=(1.5,))
    assert main(["report", "--export", str(file)]) == 0, "an older result is replaced"
    assert read_result(file).name == ""
    assert "it holds nothing else" in capsys.readouterr().out


def test_a_right_answer_of_an_exercise_with_a_score_is_noted(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def too_large(value: float) -> str | None:
        return "This does not fit." if value > 10 else None

    placing = Exercise(("milliseconds",), too_large, "It fits.", lambda value: Points(value, "ms", "lower"))
    for value in (..., 20.0, 8.0, 9.5):
        Lesson("06", exercises=(placing,)).check(1, value)
    assert read_progress().scores == (Score("06", "Exercise 1", 8.0, "ms", "lower"),)
    assert "correct. It fits. Your score: 9.5 ms (lower is better)." in capsys.readouterr().out


def test_an_export_replaces_no_other_file(answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesis = tmp_path / "thesis.json"
    thesis.write_text("{}")
    assert main(["report", "--export", str(thesis)]) == 2
    assert "is not a result of this course" in capsys.readouterr().err
    assert thesis.read_text() == "{}"
    assert main(["report", "--name", "Ada"]) == 2
    assert main(["report", "--export", str(tmp_path / "x"), "--open"]) == 2


@pytest.mark.parametrize(
    ("better", "order"), [("lower", ["Ada", "Bob", "Eve", "Kim"]), ("higher", ["Kim", "Bob", "Eve", "Ada"])]
)
def test_the_best_score_comes_first_and_equal_ones_share_a_place(better: str, order: list[str]) -> None:
    values = {"Kim": 9.0, "Bob": 5.0, "Ada": 1.0, "Eve": 5.0}
    (ranking,) = rankings([placed(name, value, better) for name, value in values.items()])
    assert [name for _, name, _ in ranking.rows] == order
    assert [place for place, _, _ in ranking.rows] == [1, 2, 2, 4]


def test_predictions_are_ordered_by_close_ones_then_by_the_typical_factor() -> None:
    results = [placed("one lucky", 1, factors=(1.0,)), placed("good", 1, factors=(1.5, 1.8, 9.0)),
               placed("better", 1, factors=(1.1, 1.2)), placed("none", 1)]  # fmt: skip
    assert prediction_rows(results) == [
        (1, "better", 2, 2, "1.15"),
        (2, "good", 3, 2, "1.8"),
        (3, "one lucky", 1, 1, "1"),
    ]


def test_scores_that_read_the_same_share_a_place_in_alphabetical_order() -> None:
    """Nobody could see why 97.541 comes before 97.539 where the page writes 97.54 for both."""
    values = {"kim": 97.541, "Ada": 97.539, "Zoe": 99.0, "": 97.0}
    results = [placed(name, value, "higher") for name, value in values.items()]
    (ranking,) = rankings(results)
    assert ranking == rankings(results[::-1])[0]
    assert ranking.rows == ((1, "Zoe", "99"), (2, "Ada", "97.54"), (2, "kim", "97.54"), (4, "no name given", "97"))
    assert "share a place" in leaderboard_page(results)


def test_two_learners_without_a_name_and_with_the_same_score_are_both_there() -> None:
    (ranking,) = rankings([placed("", 1), placed("", 1)])
    assert [place for place, *_ in ranking.rows] == [1, 1]


def test_predictions_and_solved_exercises_have_places_too() -> None:
    results = [
        placed("Bob", 1, factors=(1.2, 1.3001)),
        placed("Ada", 1, factors=(1.2, 1.3)),
        placed("Eve", 1, factors=(1.9,)),
    ]
    assert [row[:2] for row in prediction_rows(results)] == [(1, "Ada"), (1, "Bob"), (3, "Eve")]
    assert solved_rows(
        [LearnerResult("b", 3, (), ()), LearnerResult("a", 3, (), ()), LearnerResult("c", 1, (), ())]
    ) == [(1, "a", 3), (1, "b", 3), (3, "c", 1)]


def test_the_command_leaves_out_what_is_no_result_and_goes_on(
    answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good = json.loads(to_text(placed("Ada", 56.5)))
    files = {
        "good": json.dumps(good),
        "foreign": '{"cells": []}',
        "damaged": "{",
        "list": "[]",
        "newer": json.dumps({**good, "version": 2}),
        "wrong": json.dumps({**good, "scores": [{"lesson": 6}]}),
        "cheat": json.dumps({**good, "factors_off": [0.5]}),
        "deep": "[" * 100_000,
        "large": " " * 2_000_000,
    }
    for name, text in files.items():
        Path(name).write_text(text)
    os.symlink("/dev/zero", "endless")
    os.mkfifo("pipe")
    assert main(["leaderboard", *files, "missing", "endless", "pipe", ".", "-o", "page.html"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "The leaderboard of 1 learner is page.html.\n"
    told = dict(re.findall(r"^Left out: (\w+): (.+)$", printed.err, re.M))
    assert set(told) == {*files, "missing", "endless", "pipe"} - {"good"}
    assert "not a regular file" in told["endless"] == told["pipe"]
    assert "too large" in told["large"]
    assert "another version" in told["newer"]
    assert "is damaged" in told["wrong"]
    assert "Ada" in Path("page.html").read_text()
    assert main(["leaderboard", "damaged"]) == 2
    Path("mine.html").write_text("years of work")
    assert main(["leaderboard", "good", "-o", "mine.html"]) == 2
    assert "is not a leaderboard of this course" in capsys.readouterr().err


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(key=st.sampled_from(["name", "solved", "scores", "factors_off", "version"]), value=JSON)
def test_any_damage_is_a_clear_message(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    file = tmp_path_factory.mktemp("result") / "result.json"
    file.write_text(json.dumps({**json.loads(to_text(placed("Ada", 1))), key: value}))
    try:
        result = read_result(file)
    except CourseError as problem:
        told = str(problem)
    else:
        told = leaderboard_page([result])
    assert told.startswith((f"{file}: ", "<!DOCTYPE html>"))


@given(name=st.text(max_size=30))
def test_a_name_is_shown_and_nothing_else(name: str) -> None:
    tags = re.compile(r"<[a-z/][^>]*>")
    assert tags.findall(leaderboard_page([placed(name, 1)])) == tags.findall(leaderboard_page([placed("Ada", 1)]))


def test_the_page_is_one_file_that_loads_nothing() -> None:
    page = leaderboard_page([placed("Ada", 1, factors=(1.5,)), placed("", 2)])
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"<(script|link|img|iframe|form)\b|url\(http|@import|\bsrc=", page)
    assert "no name given" in page
    assert re.findall(r"<h(\d)", page) == ["1", "2", "2", "2"]
    assert page.count("<caption>") == page.count("<table")


def test_the_report_shows_scores_and_says_what_is_right_only_after_the_lessons(answered: Path) -> None:
    from datetime import date

    question = questions("speed")[0]
    note_quiz("speed", question.key, before="a")
    page = report_page(read_progress(), date(2026, 3, 2))
    assert "56.5" in page
    assert "a) It halves" in page
    assert "right)" not in page
    note_quiz("speed", question.key, after=question.right)
    page = report_page(read_progress(), date(2026, 3, 2))
    assert page.count("(not right)") == 1
    assert page.count("(right)") == 1


def test_without_records_a_result_is_empty() -> None:
    from ipu_course.progress import Progress

    assert result_of(Progress(), "") == LearnerResult("", 0, (), ())
