"""The description of a program: what it counts, and what no program can have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_written import op, tensor

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.predict.program import Program
from ipu_model.step import Source, step_of_ops

STEP = step_of_ops([op("relu", (8, 4), "x")], [(tensor("x", 8, 4), Source.INPUT)])
PROGRAM = Program(STEP, True, Batching(2, 3, 4), processes=5)


def test_samples_of_a_call_are_micro_batches_of_all_replicas() -> None:
    assert PROGRAM.samples_per_call == 8 * (2 * 3) * (4 * 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batching": Batching(device_iterations=0)}, "0 device iterations: 1 is the least"),
        ({"batching": Batching(accumulation=-1)}, "-1 gradient accumulation"),
        ({"batching": Batching(replicas=0)}, "0 replicas"),
        ({"processes": 0}, "0 processes"),
        ({"prefetch_depth": -1}, "-1 prefetch depth: 0 is the least"),
        ({"io_tiles": -32}, "-32 I/O tiles: 0 is the least"),
        ({"io_tiles": 1472, "overlaps_input": True}, "1472 I/O tiles leave none of the 1472 tiles"),
    ],
)
def test_impossible_counts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Error, match=words):
        replace(PROGRAM, **changes)
