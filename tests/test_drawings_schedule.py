"""The drawing of a schedule, and both curves of utilisation: the order, the times, and the rules that are broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle

from ipu_course import figures
from ipu_course.figures.looks import BACKWARD as BACKWARD_LOOK
from ipu_course.figures.looks import FORWARD as FORWARD_LOOK
from ipu_course.figures.looks import RECOMPUTE
from ipu_course.lessons.pipelining_mnist.learner_schedule import schedule_of
from ipu_course.schedule import (
    BACKWARD,
    FORWARD,
    PassTimes,
    Schedule,
    busy_by_time,
    interleaved,
    pipelined,
    problems,
    sharded,
    timed_passes,
)

stage_counts = st.integers(1, 6)
micro_batch_counts = st.integers(1, 20)


def grouped(stages: int) -> Callable[[int, int], tuple[int, int]]:
    """What a learner writes in lesson 06."""
    return lambda stage, micro_batch: (stage + micro_batch, 2 * (stages - 1) - stage + micro_batch)


class TestScheduleOf:
    @given(stage_counts, micro_batch_counts)
    def test_the_right_function_gives_the_grouped_schedule(self, stages: int, micro_batches: int) -> None:
        assert schedule_of(grouped(stages), stages, micro_batches) == pipelined(stages, micro_batches)

    @pytest.mark.parametrize("answer", [None, 3, (1,), (0, -1), ("0", "1"), (0.5, 1), (True, False), ...])
    def test_an_answer_that_is_no_two_steps_is_named(self, answer: object) -> None:
        with pytest.raises(ValueError, match=r"when\(0, 0\) returned .*two whole numbers"):
            schedule_of(lambda stage, micro_batch: answer, 2, 3)  # type: ignore[arg-type,return-value]

    def test_whole_floats_are_steps(self) -> None:
        made = schedule_of(lambda k, m: (float(k + m), 2 - k + m), 2, 3)  # type: ignore[arg-type,return-value]
        assert made == pipelined(2, 3)


class TestProblems:
    @given(st.sampled_from([pipelined, interleaved, sharded]), stage_counts, micro_batch_counts)
    def test_a_possible_schedule_has_none(
        self, kind: Callable[[int, int], Schedule], stages: int, micro_batches: int
    ) -> None:
        assert problems(kind(stages, micro_batches)) == ()

    def test_two_passes_at_once_are_named_with_their_ipu_and_step(self) -> None:
        (found,) = problems(schedule_of(lambda k, m: (m // 2, m), 1, 2))
        assert found.words == "IPU 0 would run F1 and F2 at the same time, in step 0: it runs one pass at a time."
        assert [(each.direction, each.micro_batch) for each in found.passes] == [(FORWARD, 0), (FORWARD, 1)]

    def test_a_forward_pass_waits_for_the_stage_before_it(self) -> None:
        (found,) = problems(schedule_of(lambda k, m: (m, 2 - k + m), 2, 1))
        assert found.words == (
            "F1 on IPU 1 is in step 0, but it needs the result of F1 on IPU 0 in step 0, "
            "and results move between steps."
        )

    def test_a_backward_pass_waits_for_the_stage_behind_it(self) -> None:
        (found,) = problems(schedule_of(lambda k, m: (k + m, 1 + m), 2, 1))
        assert found.words.startswith("B1 on IPU 0 is in step 1, but it needs the result of B1 on IPU 1 in step 1")

    def test_the_last_stage_turns_round_in_one_step_but_not_before_its_forward_pass(self) -> None:
        (found,) = problems(schedule_of(lambda k, m: (1, 0), 1, 1))
        assert found.words == "B1 on IPU 0 is in step 0, but it needs the result of F1 on IPU 0 in step 1."


class TestTimes:
    @given(stage_counts, micro_batch_counts, st.floats(0.1, 5), st.floats(0, 2))
    def test_passes_of_one_ipu_follow_each_other_and_recomputation_comes_first(
        self, stages: int, micro_batches: int, backward: float, recompute: float
    ) -> None:
        passes = timed_passes(pipelined(stages, micro_batches), PassTimes(1.0, backward, recompute))
        for stage in range(stages):
            own = sorted((each.start, each.end) for each in passes if each.of.stage == stage)
            assert all(start >= end - 1e-9 for (_, end), (start, _) in zip(own, own[1:]))
        assert all(each.recompute == (recompute if each.of.direction == BACKWARD else 0.0) for each in passes)

    @given(stage_counts, micro_batch_counts)
    def test_the_share_of_the_time_is_that_of_the_formula(self, stages: int, micro_batches: int) -> None:
        passes = timed_passes(pipelined(stages, micro_batches), PassTimes(1.0, 2.0))
        busy = sum(each.end - each.start for each in passes) / stages / max(each.end for each in passes)
        assert busy == pytest.approx(busy_by_time(stages, micro_batches))
        assert busy == pytest.approx(pipelined(stages, micro_batches).busy_share(2.0))

    def test_the_longest_stage_sets_the_pace(self) -> None:
        # Two stages of 1 + 2 and of 2 + 4, m micro-batches: (m + 1) half-steps each way, all but the last and the
        # first of them as long as the second stage's.
        passes = timed_passes(pipelined(2, 5), [PassTimes(1, 2), PassTimes(2, 4)])
        assert max(each.end for each in passes) == (1 + 5 * 2) + (5 * 4 + 2)

    def test_times_for_another_number_of_stages_are_refused(self) -> None:
        with pytest.raises(ValueError, match="times for 3 stages, but 2 stages"):
            figures.schedule(pipelined(2, 3), [PassTimes()] * 3)


class TestDrawn:
    def test_every_pass_is_drawn_at_its_time_and_backward_after_its_recomputation(self) -> None:
        of, times = pipelined(2, 8), PassTimes(1.0, 2.0, 0.5)
        (axes,) = figures.schedule(of, times).figure.axes
        drawn: dict[str, set[tuple[float, int]]] = {}
        for patch in axes.patches:
            assert isinstance(patch, Rectangle)
            key = f"{patch.get_facecolor()} {patch.get_hatch()}"
            drawn.setdefault(key, set()).add((round(patch.get_x(), 6), round(patch.get_y() + patch.get_height() / 2)))
        passes = timed_passes(of, times)
        keys = {name: _key(look.face, look.hatch) for name, look in
                {"F": FORWARD_LOOK, "R": RECOMPUTE, "B": BACKWARD_LOOK}.items()}  # fmt: skip
        assert drawn[keys["F"]] == {(round(e.start, 6), e.of.stage) for e in passes if e.of.direction == FORWARD}
        backward = [each for each in passes if each.of.direction == BACKWARD]
        assert drawn[keys["R"]] == {(round(each.start, 6), each.of.stage) for each in backward}
        assert drawn[keys["B"]] == {(round(each.start + 0.5, 6), each.of.stage) for each in backward}

    def test_each_ipu_has_a_row_and_the_axis_is_a_time(self) -> None:
        (axes,) = figures.schedule(pipelined(4, 10), title="T").figure.axes
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"IPU {stage}" for stage in range(4)]
        assert axes.get_xlabel() == "time (forward passes)"
        texts = {text.get_text() for text in axes.texts}
        assert {f"{letter}{number}" for letter in "FB" for number in range(1, 11)} <= texts

    def test_the_words_give_time_steps_and_utilisation(self) -> None:
        # 13 half-steps each way of 1 and 2: 39; 10 / 13 = 76.9 %; 10 + 2 x 3 = 16 steps.
        words = figures.schedule(pipelined(4, 10)).description
        assert words.startswith("10 micro-batches on 4 IPUs in true order over 39 forward passes, 16 pipeline steps")
        assert "76.9%" in words

    def test_the_phases_are_named_where_there_is_a_steady_state(self) -> None:
        phases = {"ramp-up", "steady state", "ramp-down"}
        drawing = figures.schedule(pipelined(2, 3))
        assert phases <= {text.get_text() for text in drawing.figure.axes[0].texts}
        assert (
            "Ramp-up takes 2 steps, the steady state, in which all IPUs do both passes, 1 step," in drawing.description
        )
        without = figures.schedule(pipelined(2, 2)).figure.axes[0].texts
        assert not phases & {text.get_text() for text in without}

    def test_passes_that_break_a_rule_are_framed_and_told(self) -> None:
        drawing = figures.schedule(schedule_of(lambda k, m: (m // 2, m), 1, 2))
        (axes,) = drawing.figure.axes
        framed = [patch for patch in axes.patches if not patch.get_fill()]
        assert len(framed) == 2
        assert "would run F1 and F2 at the same time" in drawing.description

    def test_of_many_broken_rules_the_first_are_told_and_the_others_counted(self) -> None:
        broken = schedule_of(lambda k, m: (0, 0), 2, 6)
        assert f"And {len(problems(broken)) - 3} more rules are broken." in figures.schedule(broken).description


def _key(face: str, hatch: str) -> str:
    return f"{Rectangle((0, 0), 1, 1, facecolor=face).get_facecolor()} {hatch}"
