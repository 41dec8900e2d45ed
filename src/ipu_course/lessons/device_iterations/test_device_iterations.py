"""Lesson 03: its exercises where there is no IPU Model or no sense in an answer, and what long calls leave out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.checks import UNANSWERED, letting_errors_through
from ipu_course.ladder import published_ladder
from ipu_course.lessons.device_iterations.checks import check_call, check_in_time, check_mean_loss
from ipu_course.lessons.device_iterations.long_calls import left_out, show_long_calls

LOSSES = torch.tensor([2.5, 2.25, 2.0, 2.75, 1.5, 2.0, 2.25, 2.5])


class TestExercises:
    def test_open_answers_are_not_attempted_yet(self, capsys: pytest.CaptureFixture[str]) -> None:
        check_mean_loss(..., LOSSES)
        check_in_time(..., None)
        check_call(...)
        assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [UNANSWERED] * 3

    @pytest.mark.parametrize("answer", [LOSSES.sum() / 8, LOSSES.mean().item()])
    def test_a_tensor_and_a_number_are_both_a_mean(self, answer: object, capsys: pytest.CaptureFixture[str]) -> None:
        check_mean_loss(answer, LOSSES)
        assert "correct." in capsys.readouterr().out

    @given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            check_mean_loss(answer, LOSSES)
            check_in_time(answer, None)
            check_call(answer)

    def test_exactly_one_number_of_iterations_is_right(self, capsys: pytest.CaptureFixture[str]) -> None:
        # What the text asks for, by trial: at most 16, a divisor of 12, at most 1,000 images left out, the largest.
        allowed = [n for n in range(1, 17) if 12 % n == 0 and 50_000 % (512 * n) <= 1_000]
        accepted = []
        for number in range(1, 200):
            check_call(number)
            if "correct." in capsys.readouterr().out:
                accepted.append(number)
        assert accepted == [max(allowed)]

    def test_without_an_ipu_model_the_time_is_not_checked(self, capsys: pytest.CaptureFixture[str]) -> None:
        check_in_time(1, None)
        assert "cannot be checked here" in capsys.readouterr().out


class TestLongCalls:
    @given(st.integers(0, 100_000), st.integers(1, 100_000))
    def test_whole_calls_and_what_is_left_are_the_epoch(self, images: int, call: int) -> None:
        missing = left_out(images, call)
        assert 0 <= missing < call
        assert (images - missing) % call == 0

    def test_a_call_without_images_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one image"):
            left_out(50_000, 0)

    def test_calls_are_those_of_the_published_runs(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_long_calls(512, 24_576, {1: None, 4: None})
        # Outside a notebook, IPython prints the text form.
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        published = {step.name: step.calls_per_epoch for step in published_ladder().steps}
        calls = {row[0]: int(row[2]) for row in rows if row and row[0] in ("1", "4")}
        assert calls == {"1": published["gradient accumulation 8"], "4": published["device iterations 4"]}
