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

from ipu_course.schedule import BACKWARD, FORWARD, Schedule, interleaved, pipelined, sharded

stage_counts = st.integers(1, 9)
micro_batch_counts = st.integers(1, 40)
both_kinds = st.sampled_from([pipelined, interleaved, sharded])


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

    @pytest.mark.parametrize("kind", [pipelined, interleaved, sharded])
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


class TestInterleaved:
    @given(stage_counts, micro_batch_counts)
    def test_neighbours_never_run_the_same_kind_of_pass(self, stages: int, micro_batches: int) -> None:
        placed = {(each.stage, each.half_step): each.direction for each in interleaved(stages, micro_batches).passes}
        for (stage, half_step), direction in placed.items():
            assert placed.get((stage + 1, half_step)) != direction

    @given(stage_counts, micro_batch_counts)
    def test_filling_takes_half_the_steps_of_the_grouped_schedule(self, stages: int, micro_batches: int) -> None:
        assert interleaved(stages, micro_batches).steps == micro_batches + stages - 1


class TestStash:
    """Expected: ipu-hardware reference, section C3, and the guide's 4.2 (N + 1 for interleaved, N = stages - 1)."""

    @given(stage_counts, st.data())
    def test_a_full_pipeline_keeps_what_the_formulas_say(self, stages: int, data: st.DataObject) -> None:
        micro_batches = data.draw(st.integers(2 * stages - 1, 40))
        for stage in range(stages - 1):
            assert pipelined(stages, micro_batches).stash(stage) == 2 * (stages - 1 - stage) + 1
            assert interleaved(stages, micro_batches).stash(stage) == stages - stage

    @given(both_kinds, stage_counts, micro_batch_counts)
    def test_the_last_stage_keeps_none(self, kind: object, stages: int, micro_batches: int) -> None:
        assert callable(kind)
        assert kind(stages, micro_batches).stash(stages - 1) == 0

    @given(stage_counts, micro_batch_counts)
    def test_one_micro_batch_at_a_time_needs_none(self, stages: int, micro_batches: int) -> None:
        assert {sharded(stages, micro_batches).stash(stage) for stage in range(stages)} == {0}


class TestBusyShare:
    @given(stage_counts, micro_batch_counts, st.floats(0.5, 4))
    def test_grouped_passes_wait_for_the_way_there_only(self, stages: int, count: int, backward: float) -> None:
        # Forward passes run in count + stages - 1 half-steps, backward passes in as many; the others are empty.
        share = pipelined(stages, count).busy_share(backward)
        assert share == pytest.approx(count / (count + stages - 1))

    @given(stage_counts, micro_batch_counts, st.floats(0.5, 4))
    def test_one_ipu_at_a_time_is_busy(self, stages: int, count: int, backward: float) -> None:
        assert sharded(stages, count).busy_share(backward) == pytest.approx(1 / stages)

    def test_interleaved_forward_passes_wait_for_the_neighbours_longer_backward_pass(self) -> None:
        # Full half-steps take 2 forward passes' time, and a micro-batch's 1 + 2 of work take two half-steps.
        assert interleaved(4, 1000).busy_share(2.0) == pytest.approx(3 / 4, abs=0.01)
        assert interleaved(4, 1000).busy_share(1.0) == pytest.approx(1.0, abs=0.01)
