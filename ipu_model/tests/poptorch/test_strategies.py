"""Stages, phases and how strategies place blocks (execution reference, sections 2.6, 3 and 5)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from ipu_model.errors import Error
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


def _places(strategy: _IExecutionStrategy, entries: list[Entry]) -> list[tuple[int, int]]:
    placed = [strategy.place(user_id, ipu_id) for user_id, ipu_id in entries]
    return [(place.stage, place.ipu) for place in placed]


# Stage


def test_a_stage_lists_blocks_and_may_fix_its_ipu() -> None:
    stage = Stage("A", "B")
    assert stage.blocks == ("A", "B")
    assert stage.ipu(3) is stage
    assert Stage().blocks == ()


@pytest.mark.parametrize("ids", [(1,), ("A", None), (["A"],)])
def test_block_ids_of_a_stage_are_strings(ids: Any) -> None:
    with pytest.raises(AssertionError, match="supposed to be strings"):
        Stage(*ids)


@pytest.mark.parametrize("ipu", ["0", 1.0, None])
def test_the_ipu_of_a_stage_is_an_int(ipu: Any) -> None:
    with pytest.raises(AssertionError):
        Stage("A").ipu(ipu)


def test_a_negative_ipu_is_refused_where_a_block_is_placed() -> None:
    strategy = PipelinedExecution(Stage("A").ipu(-1))
    for place in (lambda: strategy.place("A", None), lambda: PipelinedExecution().place("A", -1)):
        with pytest.raises(poptorch.Error, match="Block 'A' is placed on IPU -1"):
            place()


# Construction


@pytest.mark.parametrize("strategy", [PipelinedExecution, ShardedExecution])
def test_stages_are_given_as_stages_ids_or_lists_of_ids(strategy: type[PipelinedExecution]) -> None:
    stages = strategy(Stage("A").ipu(5), "B", ["C", "D"], ("E",), (letter for letter in "FG"))
    entries: list[Entry] = [(block, None) for block in "ABCDEFG"]
    assert _places(stages, entries) == [(0, 5), (1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (4, 4)]


@pytest.mark.parametrize("strategy", [PipelinedExecution, ShardedExecution])
@pytest.mark.parametrize(
    ("args", "error", "fragment"),
    [
        (("A", "A"), AssertionError, "associated with more than one stage"),
        ((["A", "A"],), AssertionError, "associated with more than one stage"),
        ((Stage("A", "B"), ["C", "B"]), AssertionError, "associated with more than one stage"),
        (([1, 2],), AssertionError, "supposed to be strings"),
        (([Stage("A")],), AssertionError, "supposed to be strings"),
        ((3,), TypeError, "got 3"),
        ((None,), TypeError, "got None"),
        (("A", AutoStage.SameAsIpu), TypeError, "AutoStage"),
        ((AutoStage.SameAsIpu, AutoStage.SameAsIpu), TypeError, "AutoStage"),
    ],
)
def test_other_stages_are_refused(
    strategy: type[PipelinedExecution], args: tuple[Any, ...], error: type[Exception], fragment: str
) -> None:
    with pytest.raises(error, match=fragment):
        strategy(*args)


def test_sharded_execution_is_a_pipelined_execution_of_another_mode() -> None:
    assert issubclass(ShardedExecution, PipelinedExecution)
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert ShardedExecution().backendOptions() == {"execution_mode": 1}


def test_listed_stages_can_be_looked_up_to_fix_their_ipu() -> None:
    strategy = PipelinedExecution(["A", "B"], "C")
    strategy.stage("B").ipu(4)
    assert _places(strategy, [("A", None), ("C", None)]) == [(0, 4), (1, 1)]
    with pytest.raises(AssertionError, match=r"Unknown block 'Z'.*'A', 'B', 'C'"):
        strategy.stage("Z")


@pytest.mark.parametrize("mode", list(AutoStage))
def test_automatic_stages_cannot_be_looked_up(mode: AutoStage) -> None:
    strategy = PipelinedExecution(mode)
    strategy.place("A", 1)
    with pytest.raises(AssertionError, match="Unknown block 'A'"):
        strategy.stage("A")


# Placement: the worked examples of section 3.4

EXAMPLES: list[tuple[list[Entry], list[tuple[int, int]] | str, list[tuple[int, int]], list[tuple[int, int]] | str]] = [
    (
        [(None, 0), (None, 1), (None, 2), (None, 1)],
        [(0, 0), (1, 1), (2, 2), (1, 1)],
        [(1, 0), (2, 1), (3, 2), (4, 1)],
        "Unknown Block '0'",
    ),
    ([("A", None), ("B", None)], "no IPU was specified for block A", [(1, 1), (2, 2)], [(0, 0), (1, 1)]),
    ([("A", 3), ("B", 2)], [(3, 3), (2, 2)], [(1, 3), (2, 2)], [(0, 3), (1, 2)]),
    ([("A", 2), ("A", 5)], [(2, 2), (2, 5)], [(1, 2), (1, 5)], [(0, 2), (0, 5)]),
    ([(None, 1)], [(1, 1)], [(1, 1)], "Unknown Block '0'"),
]


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("column", [1, 2, 3])
@pytest.mark.parametrize("strategy", [PipelinedExecution, ShardedExecution])
def test_worked_examples(example: tuple[Any, ...], column: int, strategy: type[PipelinedExecution]) -> None:
    args: tuple[Any, ...] = ((), (AutoStage.AutoIncrement,), ("A", "B"))[column - 1]
    placing, expected = strategy(*args), example[column]
    if isinstance(expected, str):
        with pytest.raises(AssertionError, match=expected):
            _places(placing, example[0])
    else:
        assert _places(placing, example[0]) == expected


def test_same_as_ipu_is_the_default() -> None:
    assert _places(PipelinedExecution(), [("A", 4)]) == _places(PipelinedExecution(AutoStage.SameAsIpu), [("A", 4)])


def test_an_unknown_block_names_the_expected_ones() -> None:
    with pytest.raises(AssertionError, match=r"Unknown Block 'C'.*'A', 'B'"):
        PipelinedExecution("A", "B").place("C", 0)


def test_ops_before_the_first_block_are_on_stage_0_of_ipu_0() -> None:
    for strategy in (
        PipelinedExecution(),
        PipelinedExecution(AutoStage.AutoIncrement),
        ShardedExecution("A"),
    ):
        assert strategy.begin_trace() == Placement(block="", stage=0, ipu=0)


def test_ids_of_automatic_stages_are_strings_too() -> None:
    with pytest.raises(AssertionError, match="supposed to be strings"):
        PipelinedExecution().place(5, 0)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("ipu_id", ["1", 1.5])
def test_the_ipu_of_a_block_is_an_int(ipu_id: Any) -> None:
    with pytest.raises(AssertionError):
        PipelinedExecution().place("A", ipu_id)


@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.none() | st.integers(0, 7)), max_size=12),
    st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 7)),
)
def test_the_ipu_is_the_stages_else_the_blocks_else_the_stage_number(
    entries: list[Entry], fixed: dict[str, int]
) -> None:
    strategy = PipelinedExecution(*"ABCD")
    for block, ipu in fixed.items():
        strategy.stage(block).ipu(ipu)
    for user_id, ipu_id in entries:
        assert user_id is not None
        number = "ABCD".index(user_id)
        ipu = fixed.get(user_id, number if ipu_id is None else ipu_id)
        assert strategy.place(user_id, ipu_id) == Placement(user_id, number, ipu)


@given(st.lists(st.sampled_from("ABCDEF"), max_size=20))
def test_auto_increment_numbers_blocks_by_first_use_from_1(blocks: list[str]) -> None:
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    first_uses = list(dict.fromkeys(blocks))
    for block in blocks:
        assert strategy.place(block, None).stage == 1 + first_uses.index(block)


# Automatic ids (section 2.6)


@pytest.mark.parametrize("falsy", [None, "", 0])
def test_blocks_without_an_id_are_numbered_and_named_ones_use_no_number(falsy: Any) -> None:
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    assert [strategy.place(user_id, None).block for user_id in (falsy, "A", falsy)] == ["0", "A", "1"]


def test_automatic_ids_go_on_in_the_next_trace_unless_restarted() -> None:
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    strategy.begin_trace()
    assert strategy.place(None, None).block == "0"
    strategy.begin_trace()
    assert strategy.place(None, None) == Placement("1", 2, 2)
    strategy.begin_trace()
    strategy.use_auto_id()
    assert strategy.place(None, None) == Placement("0", 1, 1)  # The stage of the first trace is used again.


# Phases (section 5.1)


def test_a_phase_of_ids_is_one_stage_and_a_phase_of_stages_keeps_them() -> None:
    assert [stage.blocks for stage in Phase("A", "B").stages] == [("A", "B")]
    first, second = Stage("A"), Stage("B")
    phase = Phase(first, second)
    assert list(phase.stages) == [first, second]
    assert phase.stage(1) is second


@pytest.mark.parametrize("args", [("A", Stage("B")), (1,), (["A"],), (Phase("A"),)])
def test_other_arguments_of_a_phase_are_refused(args: Any) -> None:
    with pytest.raises(AssertionError, match="must either be block IDs"):
        Phase(*args)


def test_the_ipus_of_a_phase() -> None:
    strategy = SerialPhasedExecution(Phase(Stage("A"), Stage("B")))
    strategy.phase(0).ipus(2, 3)
    assert strategy.place("A", None) == Placement("A", 0, 2, phase=0)
    assert strategy.place("B", None) == Placement("B", 1, 3, phase=0)
    with pytest.raises(AssertionError, match="2 stages but you provided 1"):
        strategy.phase(0).ipus(2)


PHASED = [SerialPhasedExecution, ParallelPhasedExecution]


@pytest.mark.parametrize("strategy", PHASED)
def test_phases_in_all_their_notations(strategy: Any) -> None:
    phased = strategy(Phase("A"), Stage("B"), "C", [Stage("D"), Stage("E")], ["F", "G"])
    for block, phase, stage in zip("ABCDEFG", (0, 1, 2, 3, 3, 4, 4), (0, 0, 0, 0, 1, 0, 0), strict=True):
        assert phased.place(block, phase) == Placement(block, stage, ipu=phase, phase=phase)
        assert block in phased.stage(block).blocks


@pytest.mark.parametrize("strategy", PHASED)
@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        ((), "no AutoStage for PhasedExecution"),
        ((AutoStage.SameAsIpu,), "no AutoStage for PhasedExecution"),
        ((("A", "B"),), "several arguments"),
        (([Phase("A"), Phase("B")],), "must either be block IDs"),
        (("A", ["B", "A"]), "more than one stage"),
        ((3,), "A phase is"),
    ],
)
def test_other_phases_are_refused(strategy: Any, args: tuple[Any, ...], fragment: str) -> None:
    with pytest.raises(AssertionError, match=fragment):
        strategy(*args)


@pytest.mark.parametrize("strategy", PHASED)
def test_looking_up_phases_and_stages(strategy: Any) -> None:
    phased = strategy("A", "B")
    assert phased.phase(1).stages[0].blocks == ("B",)
    for bad in (-1, "0"):
        with pytest.raises(AssertionError):
            phased.phase(bad)
    with pytest.raises(IndexError):
        phased.phase(2)
    with pytest.raises(AssertionError, match="Unknown block 'C'"):
        phased.stage("C")


@pytest.mark.parametrize("strategy", PHASED)
def test_phased_blocks_need_to_be_listed_and_to_have_an_ipu(strategy: Any) -> None:
    with pytest.raises(AssertionError, match=r"Unknown Block 'C'.*'A', 'B'"):
        strategy("A", "B").place("C", 0)
    with pytest.raises(AssertionError, match="no IPU was specified for block A"):
        strategy("A").place("A", None)


@pytest.mark.parametrize(("block", "ipu"), [("A", 1), ("B", 0), ("B", 2)])
def test_parallel_phases_match_the_parity_of_their_ipus(block: str, ipu: int) -> None:
    assert SerialPhasedExecution("A", "B").place(block, ipu).ipu == ipu
    with pytest.raises(Error, match="even phases on even IPUs and odd phases on odd IPUs"):
        ParallelPhasedExecution("A", "B").place(block, ipu)


def test_phased_settings_return_the_strategy_and_check_types() -> None:
    serial, parallel = SerialPhasedExecution("A"), ParallelPhasedExecution("A")
    assert serial.useSeparateBackwardPhase() is serial
    assert serial.setTensorsLiveness(Liveness.OffChipAfterEachPhase) is serial
    assert parallel.sendTensorsOffChipAfterFwd() is parallel
    assert serial.backendOptions() == {
        "execution_mode": 2,
        "serial_phases_execution": True,
        "separate_backward_phase": True,
        "tensors_liveness": Liveness.OffChipAfterEachPhase,
    }
    assert parallel.backendOptions()["tensors_liveness"] is Liveness.OffChipAfterFwd
    assert parallel.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] is Liveness.AlwaysLive
    for call in (
        lambda: serial.useSeparateBackwardPhase(1),  # type: ignore[arg-type]  # the mistake under test
        lambda: serial.setTensorsLiveness(1),  # type: ignore[arg-type]  # the mistake under test
        lambda: parallel.sendTensorsOffChipAfterFwd(1),  # type: ignore[arg-type]  # the mistake under test
    ):
        with pytest.raises(AssertionError):
            call()


@pytest.mark.parametrize(
    ("liveness", "phases", "spacing"),
    [
        (Liveness.AlwaysLive, 3, 1),
        (Liveness.OffChipAfterFwd, 6, 1),
        (Liveness.OffChipAfterFwdNoOverlap, 8, 2),
        (Liveness.OffChipAfterEachPhase, 12, 4),
    ],
)
def test_phase_counts_of_section_5_2(liveness: Liveness, phases: int, spacing: int) -> None:
    strategy = SerialPhasedExecution("A", "B", "C").setTensorsLiveness(liveness)
    assert strategy.total_phases() == phases
    assert strategy.phase_number(2) == 2 * spacing


def test_a_separate_backward_phase_adds_one_when_tensors_stay_on_chip() -> None:
    strategy = SerialPhasedExecution("A", "B", "C").useSeparateBackwardPhase()
    assert strategy.total_phases() == 4
    assert strategy.setTensorsLiveness(Liveness.OffChipAfterFwd).total_phases() == 6


# Copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda strategy: pickle.loads(pickle.dumps(strategy))])
@pytest.mark.parametrize(
    "build",
    [
        PipelinedExecution,
        lambda: PipelinedExecution(AutoStage.AutoIncrement),
        lambda: ShardedExecution("A", Stage("B").ipu(4)),
        lambda: SerialPhasedExecution("A", Phase(Stage("B"), Stage("C"))),
        lambda: ParallelPhasedExecution(["A", "B"]),
    ],
)
def test_copies_place_alike_and_independently(
    build: Callable[[], _IExecutionStrategy], duplicate: Callable[[_IExecutionStrategy], _IExecutionStrategy]
) -> None:
    original = build()
    original.place("A", 0)
    copied = duplicate(original)
    assert copied.place("A", 2) == original.place("A", 2)
    assert copied.backendOptions() == original.backendOptions()
    if isinstance(original, PipelinedExecution) and not isinstance(original, ShardedExecution):
        copied.place("only in the copy", 6)
        assert original.place("B", 1).stage == build().place("B", 1).stage + (original._auto == 1)
