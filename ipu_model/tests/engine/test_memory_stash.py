"""Stashes: what a pipeline keeps of several micro-batches at once (transforms/pipeline.cpp of PopART)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import memory_for, memory_of_program, program_of, squares, total

from ipu_model.capture.graph import Graph
from ipu_model.predict.order import device_bytes, order_of, stash_slots
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation

WIDTH, BATCH = 256, 64
ACTIVATION = WIDTH * BATCH * 4  # bytes of one rectifier's result in fp32
AWAY = Locations(activations=Location(on_chip=False))


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
        """The last IPU has no stash. Its own kept tensors leave the chip between the passes, once each."""
        on_chip = memory_for(two_layers_on_each_of_four_ipus(), accumulation=8)
        away = program_of(two_layers_on_each_of_four_ipus(), accumulation=8, locations=AWAY)
        off_chip = memory_of_program(away)
        last = sum(device_bytes(held.tensor) for held in order_of(away).held if held.stage == 3)
        assert last > 0
        assert off_chip.off_chip_bytes == sum(total(m, "stashes") for m in on_chip) + last
        assert [total(m, "stashes") for m in off_chip] == [0, 0, 0, 0]


class TestActivationsOffChipWithoutStash:
    """One IPU keeps no stash: each activation leaves after the forward pass and returns for the backward pass."""

    DEPTH = 8

    def programs(self) -> tuple[Program, Program]:
        graph = squares(self.DEPTH, width=WIDTH, batch=BATCH)
        return program_of(graph), program_of(graph, locations=AWAY)

    def test_the_tiles_hold_few_of_them_at_a_time(self) -> None:
        on_chip, away = (memory_of_program(program)[0] for program in self.programs())
        assert total(on_chip, "activations") >= (self.DEPTH - 1) * ACTIVATION
        assert total(away, "activations") < 3 * ACTIVATION
        assert away.max_tile_bytes < on_chip.max_tile_bytes

    def test_streaming_memory_holds_what_the_passes_move(self) -> None:
        _, away = self.programs()
        kept = sum(device_bytes(held.tensor) for held in order_of(away).held)
        assert memory_of_program(away).off_chip_bytes == kept

    def test_small_ones_stay(self) -> None:
        on_chip, _ = self.programs()
        least = Location(on_chip=False, least_off_chip=WIDTH * BATCH + 1)
        assert memory_of_program(replace(on_chip, locations=Locations(activations=least))) == memory_of_program(on_chip)
