"""The frame of the exercises' checks."""

from __future__ import annotations

from typing import NoReturn

import pytest

from ipu_course.checks import UNANSWERED, check, letting_errors_through, whole_number_hint


def never_asked() -> NoReturn:
    raise AssertionError("a hint was looked for although the answer is open")


def verdict(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().out.splitlines()
    return line


def test_an_open_exercise_is_not_attempted_yet(capsys: pytest.CaptureFixture[str]) -> None:
    check("06", "Exercise 1", {"a": ..., "b": ...}, never_asked, "Fine.")
    assert verdict(capsys) == f"Exercise 1: {UNANSWERED}"


def test_a_half_open_exercise_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    check("06", "Exercise 1", {"a": 1, "b": ..., "c": ...}, never_asked, "Fine.")
    assert verdict(capsys) == "Exercise 1: still to fill in: b, c"


def test_a_right_answer_is_praised_and_a_wrong_one_gets_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    check("06", "Exercise 2", {"a": 1}, lambda: None, "One is enough.")
    assert verdict(capsys) == "Exercise 2: correct. One is enough."
    check("06", "Exercise 2", {"a": 2}, lambda: "That is one too many.", "One is enough.")
    assert verdict(capsys) == "Exercise 2: not yet. That is one too many."


@pytest.mark.parametrize("value", [0, -1, 2.5, 3.0, "7", None, True])
def test_what_is_no_whole_number_above_zero_gets_a_hint(value: object) -> None:
    assert whole_number_hint("accumulation", value) == (
        f"accumulation is a whole number of at least 1; you wrote {value!r}."
    )


def test_a_whole_number_gets_none() -> None:
    assert whole_number_hint("accumulation", 7) is None


def broken() -> str:
    raise ZeroDivisionError("no images")


def test_an_error_in_a_check_is_told_to_the_learner_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    check("06", "Exercise 1", {"a": 0}, broken, "Fine.")
    said = "Exercise 1: not yet. The check could not use your answer (ZeroDivisionError: no images)."
    assert verdict(capsys) == said


def test_a_test_sees_the_error_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with letting_errors_through(), pytest.raises(ZeroDivisionError):
        check("06", "Exercise 1", {"a": 0}, broken, "Fine.")
    assert capsys.readouterr().out == ""
