"""Lesson 03: its exercises, its published figure, and what long calls leave out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_course import ladder
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.device_iterations import lesson
from ipu_course.lessons.device_iterations.call_anatomy import call_milliseconds
from ipu_course.lessons.device_iterations.exercises import GOOD_CALL, IN_TIME, MEAN_LOSS, rate_at
from ipu_course.lessons.device_iterations.long_calls import left_out, long_call_row
from ipu_course.lessons.device_iterations.programs import small_program
from ipu_course.not_modelled import NOT_MODELLED

LOSSES = torch.tensor([2.5, 2.25, 2.0, 2.75, 1.5, 2.0, 2.25, 2.5])


class TestExercises:
    @pytest.mark.parametrize("answer", [LOSSES.sum() / 8, LOSSES.mean().item(), LOSSES.double().mean().numpy()])
    def test_a_tensor_and_a_number_are_both_a_mean(self, answer: object) -> None:
        assert judge(MEAN_LOSS, [answer], LOSSES).correct

    @given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            judge(MEAN_LOSS, [answer], LOSSES)
            judge(IN_TIME, [answer, answer], NOT_MODELLED)
            judge(GOOD_CALL, [answer])

    def test_exactly_one_number_of_iterations_is_right(self) -> None:
        # What the text asks for, by trial: at most 16, a divisor of 12, at most 1,000 images left out, the largest.
        allowed = [n for n in range(1, 17) if 12 % n == 0 and 50_000 % (512 * n) <= 1_000]
        assert [n for n in range(1, 200) if judge(GOOD_CALL, [n]).correct] == [max(allowed)]

    def test_the_schedule_halves_after_every_fourth_update(self) -> None:
        assert [rate_at(update) / rate_at(0) for update in (0, 3, 4, 7, 8)] == [1, 1, 0.5, 0.5, 0.25]


class TestCalls:
    def test_the_parts_of_a_call_add_up_to_it(self) -> None:
        profile = small_program().profile()
        assert sum(call_milliseconds(profile).values()) == pytest.approx(1e3 * profile.call_seconds)

    @given(st.integers(0, 100_000), st.integers(1, 100_000))
    def test_whole_calls_and_what_is_left_are_the_epoch(self, images: int, call: int) -> None:
        missing = left_out(images, call)
        assert 0 <= missing < call
        assert (images - missing) % call == 0

    def test_a_call_without_images_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one image"):
            left_out(50_000, 0)

    @pytest.mark.parametrize(("step", "iterations"), [("gradient accumulation 8", 1), ("device iterations 4", 4)])
    def test_calls_are_those_of_the_published_runs(self, step: str, iterations: int) -> None:
        assert long_call_row(iterations)["calls per epoch"] == str(ladder.published(step).calls_per_epoch)


def test_the_published_epoch_is_the_ladder_s() -> None:
    assert ladder.published("device iterations 4").result.startswith(f"{lesson.published('epoch_4').value} s")
