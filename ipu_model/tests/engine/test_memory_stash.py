"""Stashes: what a pipeline keeps of several micro-batches at once (transforms/pipeline.cpp of PopART)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import memory_for, memory_of_program, program_of, squares, total

from ipu_model.predict.order import device_bytes, order_of, stash_slots
from ipu_model.predict.program import Execution, Location, Locations, Recomputation

WIDTH, BATCH, DEPTH = 256, 64, 8
ACTIVATION = WIDTH * BATCH * 4  # bytes of one rectifier's result in fp32
AWAY = Locations(activations=Location(on_chip=False))
FOUR_IPUS, ONE_IPU = (squares(DEPTH, width=WIDTH, batch=BATCH, ipus=ipus) for ipus in (4, 1))


@given(st.integers(1, 16), st.data())
def test_slots_of_a_stage(stages: int, data: st.DataObject) -> None:
    """The guide, 4.2: 2 N + 1 on the first IPU become N + 1 in an interleaved schedule, for N stages behind it."""
    stage = data.draw(st.integers(0, stages - 1))
    grouped = 0 if stage == stages - 1 else 2 * (stages - 1 - stage) + 1
    assert stash_slots(Execution.PIPELINED, stages, stage) == grouped
    assert stash_slots(Execution.INTERLEAVED, stages, stage) == (grouped + 1) // 2
    assert stash_slots(Execution.SHARDED, stages, stage) == 0


@pytest.mark.parametrize(
    ("options", "activations"),
    [
        ({"recomputation": Recomputation.PIPELINE}, [7, 5, 3, 0]),  # the input of a stage
        # Its input (read by a weight gradient) and the results of two rectifiers.
        ({"recomputation": Recomputation.NONE}, [7 * 3, 5 * 3, 3 * 3, 0]),
        ({"execution": Execution.SHARDED}, [0, 0, 0, 0]),
        ({"execution": Execution.INTERLEAVED, "recomputation": Recomputation.PIPELINE}, [4, 3, 2, 0]),
        ({"training": False, "optimiser": None}, [0, 0, 0, 0]),
    ],
)
def test_bytes_of_stashes_on_four_ipus(options: dict[str, Any], activations: list[int]) -> None:
    accumulation = 8 if options.get("training", True) else 1
    memory = memory_for(FOUR_IPUS, accumulation=accumulation, **options)
    assert [total(ipu, "stashes") / ACTIVATION for ipu in memory] == activations


def test_off_chip_activations_take_the_stashes_along() -> None:
    """The last IPU has no stash. Its own kept tensors leave the chip between the passes, once each."""
    on_chip = memory_for(FOUR_IPUS, accumulation=8)
    away = program_of(FOUR_IPUS, accumulation=8, locations=AWAY)
    off_chip = memory_of_program(away)
    last = sum(device_bytes(held.tensor) for held in order_of(away).held if held.stage == 3)
    assert last > 0
    assert off_chip.off_chip_bytes == sum(total(ipu, "stashes") for ipu in on_chip) + last
    assert [total(ipu, "stashes") for ipu in off_chip] == [0, 0, 0, 0]


def test_without_a_stash_each_activation_leaves_after_the_forward_pass_and_returns_for_the_backward_pass() -> None:
    """So the tiles of one IPU hold few of them at a time, and streaming memory what the passes move."""
    here = program_of(ONE_IPU)
    away = replace(here, locations=AWAY)
    on_chip, off_chip = memory_of_program(here), memory_of_program(away)
    assert total(on_chip[0], "stashes") == 0
    assert total(on_chip[0], "activations") >= (DEPTH - 1) * ACTIVATION
    assert total(off_chip[0], "activations") < 3 * ACTIVATION
    assert off_chip.max_tile_bytes < on_chip.max_tile_bytes
    assert off_chip.off_chip_bytes == sum(device_bytes(held.tensor) for held in order_of(away).held)
    small = Location(on_chip=False, least_off_chip=WIDTH * BATCH + 1)
    assert memory_of_program(replace(here, locations=Locations(activations=small))) == on_chip
