"""The schedule of a weight update: what holds for every pipeline, and what the reference counts for one.

Expected values: ipu-hardware reference, section E (pipeline cycles per update, activity of a stage), and
poptorch-execution reference, section 4 (minimum accumulation).
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.schedule import BACKWARD, FORWARD, Schedule, pipelined, sharded

stage_counts = st.integers(1, 9)
micro_batch_counts = st.integers(1, 40)
both_kinds = st.sampled_from([pipelined, sharded])


def half_steps(schedule: Schedule) -> dict[tuple[str, int, int], int]:
    return {(each.direction, each.stage, each.micro_batch): each.half_step for each in schedule.passes}


class TestEverySchedule:
    @given(both_kinds, stage_counts, micro_batch_counts)
    def test_no_ipu_does_two_things_at_once(self, kind: object, stages: int, micro_batches: int) -> None:
        assert callable(kind)
        places = Counter((each.stage, each.half_step) for each in kind(stages, micro_batches).passes)
        assert set(places.values()) == {1}

    @given(both_kinds, stage_counts, micro_batch_counts)
    def test_every_micro_batch_passes_every_stage_once_each_way(
        self, kind: object, stages: int, micro_batches: int
    ) -> None:
        assert callable(kind)
        made = sorted((each.direction, each.stage, each.micro_batch) for each in kind(stages, micro_batches).passes)
        assert made == sorted(
            (direction, stage, micro_batch)
            for direction in (FORWARD, BACKWARD)
            for stage in range(stages)
            for micro_batch in range(micro_batches)
        )

    @given(both_kinds, stage_counts, micro_batch_counts)
    def test_a_micro_batch_goes_up_the_stages_and_then_down(
        self, kind: object, stages: int, micro_batches: int
    ) -> None:
        assert callable(kind)
        when = half_steps(kind(stages, micro_batches))
        for micro_batch in range(micro_batches):
            way = [when[FORWARD, stage, micro_batch] for stage in range(stages)]
            way += [when[BACKWARD, stage, micro_batch] for stage in reversed(range(stages))]
            assert way == sorted(set(way))

    @pytest.mark.parametrize("kind", [pipelined, sharded])
    @pytest.mark.parametrize("counts", [(0, 1), (1, 0), (-1, 3)])
    def test_counts_below_one_are_refused(self, kind: object, counts: tuple[int, int]) -> None:
        assert callable(kind)
        with pytest.raises(ValueError, match="at least 1 stage and 1 micro-batch"):
            kind(*counts)


class TestPipelined:
    def test_the_tutorial_s_update_takes_16_steps_6_of_them_up_and_6_down(self) -> None:
        # Section E: 4 IPUs, accumulation 10 -> 16 copies in the trace; fill 2(K - 1), main G - 2(K - 1).
        schedule = pipelined(4, 10)
        assert schedule.steps == 16
        assert schedule.steady_steps == range(6, 10)
        assert schedule.utilisation == 0.625

    @given(stage_counts, micro_batch_counts)
    def test_an_update_takes_a_step_per_micro_batch_and_twice_the_way(self, stages: int, micro_batches: int) -> None:
        assert pipelined(stages, micro_batches).steps == micro_batches + 2 * (stages - 1)

    @given(stage_counts, micro_batch_counts)
    def test_utilisation_is_the_share_of_steps_that_one_ipu_works(self, stages: int, micro_batches: int) -> None:
        exact = Fraction(micro_batches, micro_batches + 2 * (stages - 1))
        assert pipelined(stages, micro_batches).utilisation == pytest.approx(float(exact), rel=1e-12)

    @given(stage_counts, micro_batch_counts)
    def test_a_step_is_steady_exactly_from_2n_minus_1_micro_batches_on(self, stages: int, micro_batches: int) -> None:
        steady = pipelined(stages, micro_batches).steady_steps
        assert bool(steady) == (micro_batches >= 2 * stages - 1)
        if steady:
            assert steady == range(2 * (stages - 1), micro_batches)

    @given(stage_counts, micro_batch_counts)
    def test_a_stage_is_active_when_the_reference_says(self, stages: int, micro_batches: int) -> None:
        # Section E, closed form: forward of stage k in [k, k+G-1], backward in [2(K-1)-k, 2(K-1)-k+G-1].
        passes = pipelined(stages, micro_batches).passes
        for stage in range(stages):
            for direction, first in ((FORWARD, stage), (BACKWARD, 2 * (stages - 1) - stage)):
                steps = sorted(e.step for e in passes if (e.stage, e.direction) == (stage, direction))
                assert steps == list(range(first, first + micro_batches))

    @given(stage_counts, micro_batch_counts)
    def test_all_forward_passes_of_a_step_come_before_its_backward_passes(
        self, stages: int, micro_batches: int
    ) -> None:
        for each in pipelined(stages, micro_batches).passes:
            assert each.half_step % 2 == (each.direction == BACKWARD)


class TestSharded:
    @given(stage_counts, micro_batch_counts)
    def test_one_pass_at_a_time_without_a_gap(self, stages: int, micro_batches: int) -> None:
        schedule = sharded(stages, micro_batches)
        assert [each.half_step for each in schedule.passes] == list(range(2 * stages * micro_batches))
        assert schedule.steps == stages * micro_batches

    @given(st.integers(1, 9), micro_batch_counts)
    def test_all_but_one_ipu_are_idle(self, stages: int, micro_batches: int) -> None:
        assert sharded(stages, micro_batches).utilisation == pytest.approx(1 / stages)
