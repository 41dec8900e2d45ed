"""Costs and memory are found once for all programs that share them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import FLOAT, adamw, program_of, squares

from ipu_model.batching import Batching
from ipu_model.costed import lowered, memory_for
from ipu_model.memory import memory_of
from ipu_model.predict.device import CostSettings
from ipu_model.profiling.data import Memory
from ipu_model.program import Program, Recomputation
from ipu_model.recompute import kept_for_backward

PROGRAM = program_of(squares(4, width=32, ipus=2), optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE)


def remembered(program: Program) -> Memory:
    return memory_for(program, lowered(program.step, program.settings), kept_for_backward(program))


def afresh(program: Program) -> Memory:
    return memory_of(program, lowered(program.step, program.settings), kept_for_backward(program))


class TestCosts:
    def test_equal_settings_share_them(self) -> None:
        assert lowered(PROGRAM.step, CostSettings()) is lowered(PROGRAM.step, CostSettings())

    def test_other_settings_do_not(self) -> None:
        other = CostSettings(half_partials=True)
        assert lowered(PROGRAM.step, other) is not lowered(PROGRAM.step, CostSettings())

    def test_only_the_latest_are_kept(self) -> None:
        first = lowered(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.5}))
        for tenths in range(10):
            lowered(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.01 * tenths}))
        assert lowered(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.5})) is not first


class TestMemory:
    @given(st.integers(1, 64), st.integers(1, 40))
    def test_what_is_remembered_is_what_would_be_found(self, accumulation: int, iterations: int) -> None:
        program = replace(PROGRAM, batching=Batching(iterations, accumulation))
        assert remembered(program) == afresh(program)

    def test_repetitions_share_it(self) -> None:
        some, more = (replace(PROGRAM, batching=Batching(d, a)) for d, a in ((1, 4), (10, 512)))
        assert remembered(some) is remembered(more)

    @pytest.mark.parametrize(
        "change", [{"recomputation": Recomputation.NONE}, {"batching": Batching(1, 1)}, {"optimiser": None}]
    )
    def test_what_matters_does_not(self, change: dict[str, object]) -> None:
        assert remembered(replace(PROGRAM, **change)) != remembered(PROGRAM)  # type: ignore[arg-type]
