"""Lesson 02: its exercises, its published figures, and what its figures are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.datasets import colour_shapes
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.ladder import published_ladder
from ipu_course.lessons.gradient_accumulation import lesson, percent_apart
from ipu_course.lessons.gradient_accumulation.exercises import BUSY, ENOUGH, PLAN, SUM
from ipu_course.lessons.gradient_accumulation.rates import share_of_highest_rate
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.schedule import busy_by_time


class TestExercises:
    def test_the_plan_is_the_largest_micro_batch_that_is_busy_enough(self) -> None:
        # 80 % of the time over four IPUs; all ways to make 512 images of whole micro-batches.
        plans = [(512 // m, m) for m in range(7, 513) if 512 % m == 0]
        assert max(plan for plan in plans if busy_by_time(4, plan[1]) >= 0.8) == PLAN

    @given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            judge(BUSY, [answer, answer])
            judge(SUM, [answer, answer])
            judge(ENOUGH, [answer], NOT_MODELLED)


class TestShareOfTheHighestRate:
    @given(st.integers(1, 1000), st.integers(0, 10_000))
    def test_a_fixed_cost_beside_equal_micro_batches(self, each: int, fixed: int) -> None:
        # m micro-batches of `each` cycles in m x each + fixed: the share is m x each of that.
        shares = share_of_highest_rate({m: m * each + fixed for m in (3, 5, 8)})
        assert shares == pytest.approx({m: m * each / (m * each + fixed) for m in (3, 5, 8)})

    def test_one_trace_is_not_enough(self) -> None:
        with pytest.raises(ValueError, match="two accumulations"):
            share_of_highest_rate({3: 24_342_210})


class TestPublishedFigures:
    def test_the_derived_gain_follows_from_the_published_cycles(self) -> None:
        cycles = {m: lesson.published(f"cycles_{m}").value for m in (3, 8)}
        assert lesson.published("gain_3_to_8").value == pytest.approx((8 / cycles[8]) / (3 / cycles[3]), abs=5e-4)

    def test_the_epoch_is_the_ladder_s(self) -> None:
        steps = {step.name: step for step in published_ladder().steps}
        assert steps["gradient accumulation 8"].result.startswith(f"{lesson.published('epoch_8').value} s")


def test_training_that_does_nothing_is_a_whole_way_apart() -> None:
    # The distance is the way itself, so 100 %.
    shapes = colour_shapes(train=True, images=64)
    assert percent_apart(lambda network, optimiser: None, shapes, "SGD", 0.1, 0.1, False) == pytest.approx(100)
