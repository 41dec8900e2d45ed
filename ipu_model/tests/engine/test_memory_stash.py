"""Stashes: what a pipeline keeps of several micro-batches at once (transforms/pipeline.cpp of PopART)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import memory_for, squares, total

from ipu_model.graph import Graph
from ipu_model.predict.order import stash_slots
from ipu_model.predict.program import Execution, Location, Locations, Recomputation

WIDTH, BATCH = 256, 64
ACTIVATION = WIDTH * BATCH * 4  # bytes of one rectifier's result in fp32


@given(st.integers(1, 16), st.data())
def test_depth_of_a_pipeline(stages: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    expected = 0 if stage == stages - 1 else 2 * (stages - 1 - stage) + 1
    assert stash_slots(Execution.PIPELINED, stages, stage) == expected


@given(st.integers(1, 16), st.data())
def test_an_interleaved_schedule_has_about_half(stages: int, data: st.DataObject) -> None:
    """The guide, 4.2: 2 N + 1 on the first IPU become N + 1, for N stages behind it."""
    stage = data.draw(st.integers(0, stages - 1))
    grouped = stash_slots(Execution.PIPELINED, stages, stage)
    assert stash_slots(Execution.INTERLEAVED, stages, stage) == (grouped + 1) // 2


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sharded_programs_stash_nothing(stage: int) -> None:
    assert stash_slots(Execution.SHARDED, 4, stage) == 0


def two_layers_on_each_of_four_ipus() -> Graph:
    return squares(8, width=WIDTH, batch=BATCH, ipus=4)


class TestBytes:
    @pytest.mark.parametrize(("ipu", "slots"), [(0, 7), (1, 5), (2, 3), (3, 0)])
    def test_recomputation_stashes_the_input_of_a_stage(self, ipu: int, slots: int) -> None:
        memory = memory_for(two_layers_on_each_of_four_ipus(), accumulation=8, recomputation=Recomputation.PIPELINE)
        assert total(memory[ipu], "stashes") == slots * ACTIVATION

    @pytest.mark.parametrize(("ipu", "slots", "tensors"), [(0, 7, 3), (1, 5, 3), (2, 3, 3), (3, 0, 0)])
    def test_without_it_all_that_the_backward_pass_reads(self, ipu: int, slots: int, tensors: int) -> None:
        """Of each stage: its input (read by a weight gradient) and the results of two rectifiers."""
        memory = memory_for(two_layers_on_each_of_four_ipus(), accumulation=8, recomputation=Recomputation.NONE)
        assert total(memory[ipu], "stashes") == slots * tensors * ACTIVATION

    def test_sharded(self) -> None:
        memory = memory_for(two_layers_on_each_of_four_ipus(), accumulation=8, execution=Execution.SHARDED)
        assert [total(m, "stashes") for m in memory] == [0, 0, 0, 0]

    def test_interleaved(self) -> None:
        memory = memory_for(
            two_layers_on_each_of_four_ipus(),
            accumulation=8,
            execution=Execution.INTERLEAVED,
            recomputation=Recomputation.PIPELINE,
        )
        assert [total(m, "stashes") / ACTIVATION for m in memory] == [4, 3, 2, 0]

    def test_one_ipu(self) -> None:
        memory = memory_for(squares(8, width=WIDTH, batch=BATCH))
        assert total(memory[0], "stashes") == 0

    def test_inference(self) -> None:
        memory = memory_for(two_layers_on_each_of_four_ipus(), training=False, optimiser=None, accumulation=1)
        assert [total(m, "stashes") for m in memory] == [0, 0, 0, 0]

    def test_off_chip_activations_take_the_stashes_along(self) -> None:
        on_chip = memory_for(two_layers_on_each_of_four_ipus(), accumulation=8)
        off_chip = memory_for(
            two_layers_on_each_of_four_ipus(), accumulation=8, locations=Locations(activations=Location(on_chip=False))
        )
        assert off_chip.off_chip_bytes == sum(total(m, "stashes") for m in on_chip)
        assert [total(m, "stashes") for m in off_chip] == [0, 0, 0, 0]
