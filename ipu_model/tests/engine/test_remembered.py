"""Costs, memory and profiles are computed once for all programs that share them, and freed with their step."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_support import FLOAT, adamw, memory_of_program, program_of, squares

from ipu_model import predict
from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.profile import EXCHANGE_CODE, Memory
from ipu_model.predict.program import Program, Recomputation
from ipu_model.predict.remembered import Recent, remembered
from ipu_model.step import Step

PROGRAM = program_of(squares(4, width=32, ipus=2), optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE)


class TestRemembering:
    def test_each_step_is_asked_once_for_each_key(self) -> None:
        asked: list[tuple[Step, int]] = []

        @remembered
        def doubled(step: Step, number: int) -> int:
            asked.append((step, number))
            return 2 * number

        one, other = (step_of(squares(1, width=8)) for _ in range(2))
        calls = [(one, 1), (other, 1), (one, 2), (one, 1), (other, 1)]
        assert [doubled(*call) for call in calls] == [2, 2, 4, 2, 2]
        assert asked == [(one, 1), (other, 1), (one, 2)]

    def test_a_step_that_is_gone_leaves_nothing_behind(self) -> None:
        class Found:
            alive = 0

            def __init__(self) -> None:
                Found.alive += 1

            def __del__(self) -> None:
                Found.alive -= 1

        recent: Recent[Found] = Recent()
        graph = squares(1, width=8)
        recent.keep(step_of(graph), "key", Found())
        assert Found.alive == 1
        del graph
        gc.collect()
        assert Found.alive == 0

    def test_profiles_do_not_keep_their_step(self) -> None:
        program = program_of(squares(1, width=8))
        predict.profile_lately(program, predict.HostWork())
        steps = sum(isinstance(each, Step) for each in gc.get_objects())
        del program
        gc.collect()
        assert sum(isinstance(each, Step) for each in gc.get_objects()) == steps - 1


class TestCosts:
    def test_equal_settings_share_them(self) -> None:
        assert costs_of(PROGRAM.step, CostSettings()) is costs_of(PROGRAM.step, CostSettings())

    def test_other_settings_do_not(self) -> None:
        other = CostSettings(half_partials=True)
        assert costs_of(PROGRAM.step, other) is not costs_of(PROGRAM.step, CostSettings())

    def test_only_the_latest_are_kept(self) -> None:
        first = costs_of(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.5}))
        for tenths in range(10):
            costs_of(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.01 * tenths}))
        assert costs_of(PROGRAM.step, CostSettings(available_memory_proportion={0: 0.5})) is not first


class TestMemory:
    @given(st.integers(1, 64), st.integers(1, 40))
    def test_what_is_remembered_is_what_would_be_found(self, accumulation: int, iterations: int) -> None:
        program = replace(PROGRAM, batching=Batching(iterations, accumulation))
        assert predict.memory_of_program(program) == memory_of_program(program)

    def test_repetitions_share_it(self) -> None:
        some, more = (replace(PROGRAM, batching=Batching(d, a)) for d, a in ((1, 4), (10, 512)))
        assert predict.memory_of_program(some) is predict.memory_of_program(more)

    @pytest.mark.parametrize(
        "change", [{"recomputation": Recomputation.NONE}, {"batching": Batching(1, 1)}, {"optimiser": None}]
    )
    def test_what_matters_does_not(self, change: dict[str, object]) -> None:
        changed: Program = replace(PROGRAM, **change)  # type: ignore[arg-type]
        assert predict.memory_of_program(changed) != predict.memory_of_program(PROGRAM)

    def test_other_constants_show_at_once(self) -> None:
        """Ten times as many bytes per phase give ten times the exchange code on every IPU."""
        name = "memory.exchange_code_bytes_per_phase"
        plain = predict.memory_of_program(PROGRAM)
        calibration = PROGRAM.calibration
        dearer = calibration.with_values({name: 10 * calibration.memory.exchange_code_bytes_per_phase})
        changed = replace(PROGRAM, settings=replace(PROGRAM.settings, device=Device(calibration=dearer)))
        assert exchange_code(predict.memory_of_program(changed)) == pytest.approx(
            [10 * each for each in exchange_code(plain)]
        )
        assert predict.memory_of_program(PROGRAM) == plain


def exchange_code(memory: Memory) -> list[float]:
    return [ipu.bytes_by_category[EXCHANGE_CODE] for ipu in memory]
