"""Stages, phases and how strategies place blocks (execution reference, sections 2.6, 3 and 5)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.step import Placement
from poptorch.enums import AutoStage, Liveness
from poptorch.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)

Entry = tuple[str | None, int | None]
STAGED, PHASED = (PipelinedExecution, ShardedExecution), (SerialPhasedExecution, ParallelPhasedExecution)
INCREMENT = AutoStage.AutoIncrement


def places(strategy: _IExecutionStrategy, entries: list[Entry]) -> list[tuple[int, int]]:
    placed = [strategy.place(user_id, ipu_id) for user_id, ipu_id in entries]
    return [(place.stage, place.ipu) for place in placed]


# Stages.


def test_a_stage_lists_blocks_and_may_fix_its_ipu() -> None:
    stage = Stage("A", "B")
    assert stage.blocks == ("A", "B")
    assert stage.ipu(3) is stage
    assert Stage().blocks == ()


@pytest.mark.parametrize("strategy", STAGED)
def test_stages_are_given_as_stages_ids_or_lists_of_ids(strategy: type[PipelinedExecution]) -> None:
    stages = strategy(Stage("A").ipu(5), "B", ["C", "D"], ("E",), (letter for letter in "FG"))
    entries: list[Entry] = [(block, None) for block in "ABCDEFG"]
    assert places(stages, entries) == [(0, 5), (1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (4, 4)]
    stages.stage("D").ipu(4)  # looked up to fix it
    assert places(stages, [("C", None)]) == [(2, 4)]


def test_sharded_execution_is_a_pipelined_execution_of_another_mode() -> None:
    assert issubclass(ShardedExecution, PipelinedExecution)
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert ShardedExecution().backendOptions() == {"execution_mode": 1}


@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.none() | st.integers(0, 7)), max_size=12),
    st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 7)),
)
def test_the_ipu_is_the_stages_else_the_blocks_else_the_stage_number(
    entries: list[tuple[str, int | None]], fixed: dict[str, int]
) -> None:
    strategy = PipelinedExecution(*"ABCD")
    for block, ipu in fixed.items():
        strategy.stage(block).ipu(ipu)
    for user_id, ipu_id in entries:
        number = "ABCD".index(user_id)
        ipu = fixed.get(user_id, number if ipu_id is None else ipu_id)
        assert strategy.place(user_id, ipu_id) == Placement(user_id, number, ipu)


@given(st.lists(st.sampled_from("ABCDEF"), max_size=20))
def test_auto_increment_numbers_blocks_by_first_use_from_1(blocks: list[str]) -> None:
    strategy = PipelinedExecution(INCREMENT)
    first_uses = list(dict.fromkeys(blocks))
    for block in blocks:
        assert strategy.place(block, None).stage == 1 + first_uses.index(block)


@pytest.mark.parametrize("falsy", [None, "", 0])
def test_automatic_ids_count_unnamed_blocks_and_go_on_unless_restarted(falsy: Any) -> None:
    """Section 2.6."""
    strategy = PipelinedExecution(INCREMENT)
    assert [strategy.place(user_id, None).block for user_id in (falsy, "A", falsy)] == ["0", "A", "1"]
    assert strategy.place(falsy, None) == Placement("2", 4, 4)
    strategy.use_auto_id()
    assert strategy.place(falsy, None) == Placement("0", 1, 1)  # The stage of the first trace is used again.


# Phases (section 5).


def test_a_phase_of_ids_is_one_stage_and_a_phase_of_stages_keeps_them() -> None:
    assert [stage.blocks for stage in Phase("A", "B").stages] == [("A", "B")]
    first, second = Stage("A"), Stage("B")
    phase = Phase(first, second)
    assert list(phase.stages) == [first, second]
    assert phase.stage(1) is second
    strategy = SerialPhasedExecution(phase)
    strategy.phase(0).ipus(2, 3)
    assert strategy.place("A", None) == Placement("A", 0, 2, phase=0)
    assert strategy.place("B", None) == Placement("B", 1, 3, phase=0)
    assert SerialPhasedExecution("A", "B").place("A", 1).ipu == 1  # any parity


@pytest.mark.parametrize("strategy", PHASED)
def test_phases_in_all_their_notations(strategy: Any) -> None:
    phased = strategy(Phase("A"), Stage("B"), "C", [Stage("D"), Stage("E")], ["F", "G"])
    for block, phase, stage in zip("ABCDEFG", (0, 1, 2, 3, 3, 4, 4), (0, 0, 0, 0, 1, 0, 0), strict=True):
        assert phased.place(block, phase) == Placement(block, stage, ipu=phase, phase=phase)
        assert block in phased.stage(block).blocks
        assert block in phased.phase(phase).stages[stage].blocks


def test_phased_settings_return_the_strategy() -> None:
    serial, parallel = SerialPhasedExecution("A"), ParallelPhasedExecution("A")
    assert serial.useSeparateBackwardPhase() is serial
    assert serial.setTensorsLiveness(Liveness.OffChipAfterEachPhase) is serial
    assert parallel.sendTensorsOffChipAfterFwd() is parallel
    assert serial.backendOptions() == {
        "execution_mode": 2, "serial_phases_execution": True, "separate_backward_phase": True,
        "tensors_liveness": Liveness.OffChipAfterEachPhase
    }  # fmt: skip
    assert parallel.backendOptions() == {
        "execution_mode": 2, "serial_phases_execution": False, "separate_backward_phase": False,
        "tensors_liveness": Liveness.OffChipAfterFwd
    }  # fmt: skip
    assert parallel.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] is Liveness.AlwaysLive


def test_phase_counts_of_section_5_2() -> None:
    for liveness, separate, phases, spacing in (
        ("AlwaysLive", False, 3, 1), ("AlwaysLive", True, 4, 1), ("OffChipAfterFwd", False, 6, 1),
        ("OffChipAfterFwd", True, 6, 1), ("OffChipAfterFwdNoOverlap", False, 8, 2),
        ("OffChipAfterEachPhase", False, 12, 4)
    ):  # fmt: skip
        strategy = SerialPhasedExecution("A", "B", "C").setTensorsLiveness(Liveness[liveness])
        strategy.useSeparateBackwardPhase(separate)
        assert (strategy.total_phases(), strategy.phase_number(2)) == (phases, 2 * spacing)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda strategy: pickle.loads(pickle.dumps(strategy))])
@pytest.mark.parametrize("build", [
    PipelinedExecution, lambda: PipelinedExecution(INCREMENT), lambda: ShardedExecution("A", Stage("B").ipu(4)),
    lambda: SerialPhasedExecution("A", Phase(Stage("B"), Stage("C"))), lambda: ParallelPhasedExecution(["A", "B"])
])  # fmt: skip
def test_copies_place_alike_and_independently(build: Callable[[], Any], duplicate: Callable[[Any], Any]) -> None:
    original = build()
    original.place("A", 0)
    copied = duplicate(original)
    assert copied.place("A", 2) == original.place("A", 2)
    assert copied.backendOptions() == original.backendOptions()
    if isinstance(original, PipelinedExecution) and not isinstance(original, ShardedExecution):
        copied.place("only in the copy", 6)
        assert original.place("B", 1).stage == build().place("B", 1).stage + (original._auto == 1)
