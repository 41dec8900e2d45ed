"""Predictions: what a learner sees with a guess, and without one; what is noted of it."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from ipu_course import engine
from ipu_course.lesson import Lesson
from ipu_course.progress import read_progress

LESSON = Lesson("06")


@pytest.fixture(autouse=True)
def own_progress(records: Path) -> None:
    """Give every test records of its own, and none that an earlier one could not write."""


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_without_a_guess_the_result_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("images in a call", ...).reveal(4000)
    assert shown(capsys) == [
        "images in a call",
        "  your guess: none yet (write a number in place of the dots)",
        "  computed: 4,000",
    ]
    assert not read_progress().predictions


@pytest.mark.parametrize(
    ("guess", "comparison"),
    [
        (16, "16, exactly right"),
        (16.0, "16, exactly right"),
        (10, "10, too low by a factor of 1.6"),  # 16 / 10
        (40, "40, too high by a factor of 2.5"),  # 40 / 16
        (0, "0, too low"),
        (-3, "-3, too low"),
    ],
)
def test_a_guess_is_compared(guess: float, comparison: str, capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("steps", guess).reveal(16)
    assert shown(capsys)[1] == f"  your guess: {comparison}"


def test_a_guess_is_noted_with_what_it_was_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("calls", 20).reveal(16.5, "returned", published="calls_per_second")
    line = LESSON.published("calls_per_second").line
    assert shown(capsys)[2:] == ["  returned: 16.5", f"  {line}"]
    (noted,) = read_progress().predictions
    assert (noted.lesson, noted.quantity, noted.guess, noted.result) == ("06", "calls", 20, 16.5)
    assert (noted.source, noted.compared_with) == ("returned", line)


def test_a_result_of_zero_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("idle IPUs", 2).reveal(0)
    assert shown(capsys)[1] == "  your guess: 2, too high"


def test_a_result_that_only_the_ipu_model_has_may_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("seconds", 2).reveal(None, "modelled", published="calls_per_second")
    assert shown(capsys)[:3] == ["seconds", "  your guess: 2", f"  modelled: {engine.NOT_MODELLED}"]
    assert not read_progress().predictions


@pytest.mark.parametrize("guess", ["12", True, [12], float("nan")])
def test_a_guess_that_is_no_number_gets_a_hint_and_counts_as_none(
    guess: object, capsys: pytest.CaptureFixture[str]
) -> None:
    LESSON.predict("steps", guess).reveal(16)
    assert shown(capsys) == [
        f"A guess is a number, such as 12 or 0.5; you wrote {guess!r}.",
        "steps",
        "  your guess: none yet (write a number in place of the dots)",
        "  computed: 16",
    ]
    assert not read_progress().predictions


@pytest.mark.parametrize("result", ["12", True, [12]])
def test_a_result_that_is_no_number_is_refused(result: object) -> None:
    with pytest.raises(TypeError, match="a result is a number"):
        LESSON.predict("steps", 1).reveal(result)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("number", [8, 8.0, numpy.int64(8), torch.tensor(8.0)], ids=repr)
def test_guess_and_result_are_numbers_of_any_kind(number: object, capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("steps", number).reveal(number)
    assert shown(capsys)[1:] == ["  your guess: 8, exactly right", "  computed: 8"]


def test_a_result_that_is_not_modelled_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    LESSON.predict("seconds", 2).reveal(engine.NOT_MODELLED.call_seconds, "modelled")
    assert shown(capsys) == ["seconds", "  your guess: 2", f"  modelled: {engine.NOT_MODELLED}"]
    assert not read_progress().predictions
