"""Lesson 02: its exercises where there is no IPU Model or no sense in an answer, and what its figures are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from ipu_course import engine, ladder
from ipu_course.checks import UNANSWERED, letting_errors_through
from ipu_course.lessons.gradient_accumulation.checks import PLAN, check_enough, check_plan, check_sum
from ipu_course.lessons.gradient_accumulation.rates import share_of_highest_rate, show_rates
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.schedule import pipelined
from ipu_course.views.call import call_parts
from ipu_course.views.epoch import CALLS, IPUS, LOADING, epoch_parts, show_epoch_parts


@pytest.fixture(scope="module")
def profile() -> engine.Profile:
    """A small network's training, loaded by the hands-on's host."""
    model = WithLoss(SmallNetwork(width=4))
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = ladder.micro_batch(SmallNetwork().head.weight.dtype, size=8)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    found = engine.profile_module(model, (images[..., :32, :32], labels), options, optimiser, ladder.host())
    assert found is not None
    return found


class TestExercises:
    def test_open_answers_are_not_attempted_yet(self, capsys: pytest.CaptureFixture[str]) -> None:
        check_plan(..., ...)
        check_sum(..., ...)
        check_enough(..., None)
        assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [UNANSWERED] * 3

    def test_the_plan_is_the_largest_micro_batch_that_is_busy_enough(self) -> None:
        # 70 % of the steps over four IPUs; all ways to make 512 images of whole micro-batches.
        plans = [(512 // m, m) for m in range(7, 513) if 512 % m == 0]
        busy = [plan for plan in plans if pipelined(4, plan[1]).utilisation >= 0.7]
        assert max(busy) == PLAN

    @given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            check_plan(answer, answer)
            check_sum(answer, answer)
            check_enough(answer, None)

    @pytest.mark.parametrize(("answer", "verdict"), [(3, "correct. Without the IPU Model"), (2, "not yet.")])
    def test_without_an_ipu_model_only_the_rule_is_checked(
        self, answer: int, verdict: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check_enough(answer, None)
        assert verdict in capsys.readouterr().out


class TestShareOfTheHighestRate:
    @given(st.integers(1, 1000), st.integers(0, 10_000))
    def test_a_fixed_cost_beside_equal_micro_batches(self, each: int, fixed: int) -> None:
        # m micro-batches of `each` cycles in m x each + fixed: the share is m x each of that.
        shares = share_of_highest_rate({m: m * each + fixed for m in (3, 5, 8)})
        assert shares == pytest.approx({m: m * each / (m * each + fixed) for m in (3, 5, 8)})

    def test_the_published_traces(self) -> None:
        # 5 more micro-batches take 56,541,731 - 24,342,210 = 32,199,521 cycles, 6,439,904 each.
        shares = share_of_highest_rate({3: 24_342_210, 8: 56_541_731})
        assert shares[3] == pytest.approx(3 * 6_439_904 / 24_342_210, rel=1e-6)
        assert shares[8] == pytest.approx(8 * 6_439_904 / 56_541_731, rel=1e-6)

    def test_one_trace_is_not_enough(self) -> None:
        with pytest.raises(ValueError, match="two accumulations"):
            share_of_highest_rate({3: 24_342_210})


class TestPartsOfAnEpoch:
    def test_they_add_up_to_the_epoch_when_nothing_overlaps(self, profile: engine.Profile) -> None:
        parts = epoch_parts(profile)
        assert list(parts) == [LOADING, CALLS, IPUS]
        assert sum(parts.values()) == pytest.approx(ladder.epoch_seconds(profile))

    def test_loading_is_seconds_per_image_times_images(self, profile: engine.Profile) -> None:
        host = ladder.host()
        assert host is not None
        images = 50_000 // profile.samples_per_call * profile.samples_per_call
        assert epoch_parts(profile)[LOADING] == pytest.approx(images * host.seconds_per_sample)
        assert call_parts(profile).load == pytest.approx(profile.samples_per_call * host.seconds_per_sample)


def test_where_there_is_no_ipu_model_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_rates({}, 0, {3: 0.79})
    show_epoch_parts({"accumulation 3": None})
    assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 2
