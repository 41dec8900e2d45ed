"""Costs, memory and profiles are computed once for all programs that share them, and freed with their step."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_support import FLOAT, adamw, memory_of_program, program_of, squares

from ipu_model import predict
from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.profile import EXCHANGE_CODE
from ipu_model.predict.program import Program, Recomputation
from ipu_model.predict.remembered import Recent, remembered
from ipu_model.step import Step

PROGRAM = program_of(squares(4, width=32, ipus=2), optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE)


def test_each_step_is_asked_once_for_each_key() -> None:
    asked: list[tuple[Step, int]] = []

    @remembered
    def doubled(step: Step, number: int) -> int:
        asked.append((step, number))
        return 2 * number

    one, other = (step_of(squares(1, width=8)) for _ in range(2))
    calls = [(one, 1), (other, 1), (one, 2), (one, 1), (other, 1)]
    assert [doubled(*call) for call in calls] == [2, 2, 4, 2, 2]
    assert asked == [(one, 1), (other, 1), (one, 2)]


def test_a_step_that_is_gone_leaves_nothing_behind() -> None:
    """Neither a value of its own nor, with a profile of it, itself."""
    recent: Recent[CostSettings] = Recent()
    program = program_of(squares(1, width=8))
    value_there = weakref.ref(recent.keep(program.step, "key", CostSettings(stable_norm=True)))
    predict.profile_lately(program, predict.HostWork())
    step_there = weakref.ref(program.step)
    gc.collect()
    assert value_there() is not None
    del program
    gc.collect()
    assert value_there() is step_there() is None


def test_equal_settings_share_costs_of_which_only_the_latest_are_kept() -> None:
    def costs(share: float, **more: bool) -> object:
        return costs_of(PROGRAM.step, CostSettings(available_memory_proportion={0: share}, **more))

    first = costs(0.5)
    assert costs(0.5) is first
    assert costs(0.5, half_partials=True) is not first
    for tenths in range(10):
        costs(0.01 * tenths)
    assert costs(0.5) is not first


@settings(max_examples=20)
@given(st.integers(1, 64), st.integers(1, 40))
def test_memory_that_is_remembered_is_what_would_be_found(accumulation: int, iterations: int) -> None:
    program = replace(PROGRAM, batching=Batching(iterations, accumulation))
    memory = predict.memory_of_program(program)
    assert memory == memory_of_program(program)
    if accumulation > 1:  # repetitions share it
        assert memory is predict.memory_of_program(replace(PROGRAM, batching=Batching(10, 512)))


@pytest.mark.parametrize(
    "change", [{"recomputation": Recomputation.NONE}, {"batching": Batching(1, 1)}, {"optimiser": None}]
)
def test_what_matters_has_memory_of_its_own(change: dict[str, object]) -> None:
    changed: Program = replace(PROGRAM, **change)  # type: ignore[arg-type]
    assert predict.memory_of_program(changed) != predict.memory_of_program(PROGRAM)


def test_other_constants_show_at_once() -> None:
    """Ten times as many bytes per phase give ten times the exchange code on every IPU."""
    name, usual = "memory.exchange_code_bytes_per_phase", PROGRAM.calibration
    dearer = usual.with_values({name: 10 * usual.memory.exchange_code_bytes_per_phase})
    changed = replace(PROGRAM, settings=replace(PROGRAM.settings, device=Device(calibration=dearer)))
    before, after, again = (predict.memory_of_program(program) for program in (PROGRAM, changed, PROGRAM))
    assert before == again
    for plain, more in zip(before, after):
        assert more.bytes_by_category[EXCHANGE_CODE] == pytest.approx(10 * plain.bytes_by_category[EXCHANGE_CODE])
