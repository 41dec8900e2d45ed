"""Predictions: what a learner sees with a guess, and without one."""

from __future__ import annotations

import pytest

from ipu_course.predict import predict


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_without_a_guess_the_result_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    predict("images in a call", ...).reveal(4000)
    assert shown(capsys) == [
        "images in a call",
        "  your guess: none yet (write a number in place of the dots)",
        "  computed: 4,000",
    ]


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
    predict("steps", guess).reveal(16)
    assert shown(capsys)[1] == f"  your guess: {comparison}"


def test_a_result_of_zero_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    predict("idle IPUs", 2).reveal(0)
    assert shown(capsys)[1] == "  your guess: 2, too high"


def test_source_and_published_value_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    predict("accuracy", 99).reveal(98.25, "returned", published="98.41 % [1]")
    assert shown(capsys)[2:] == ["  returned: 98.25", "  published: 98.41 % [1]"]


@pytest.mark.parametrize("guess", ["12", None, True, [12]])
def test_a_guess_that_is_no_number_is_refused(guess: object) -> None:
    with pytest.raises(TypeError, match="a guess is a number"):
        predict("steps", guess)
