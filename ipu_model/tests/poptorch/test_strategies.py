"""Stages, phases and how strategies place blocks (execution reference, sections 2.6, 3 and 5)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
STAGED, PHASED = (PipelinedExecution, ShardedExecution), (SerialPhasedExecution, ParallelPhasedExecution)
INCREMENT = AutoStage.AutoIncrement
TWICE, NO_STRINGS = "associated with more than one stage", "supposed to be strings"


def places(strategy: _IExecutionStrategy, entries: list[Entry]) -> list[tuple[int, int]]:
    placed = [strategy.place(user_id, ipu_id) for user_id, ipu_id in entries]
    return [(place.stage, place.ipu) for place in placed]


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *((lambda ids=ids: Stage(*ids), AssertionError, NO_STRINGS) for ids in ((1,), ("A", None), (["A"],))),
    *((lambda ipu=ipu: Stage("A").ipu(ipu), AssertionError, "must be an int") for ipu in ("0", 1.0, None)),
    *(
        (lambda kind=kind, args=args: kind(*args), error, words)
        for kind in STAGED
        for args, error, words in (
            (("A", "A"), AssertionError, TWICE),
            ((["A", "A"],), AssertionError, TWICE),
            ((Stage("A", "B"), ["C", "B"]), AssertionError, TWICE),
            (([1, 2],), AssertionError, NO_STRINGS),
            (([Stage("A")],), AssertionError, NO_STRINGS),
            ((3,), TypeError, "got 3"),
            ((None,), TypeError, "got None"),
            (("A", AutoStage.SameAsIpu), TypeError, "AutoStage"),
            ((AutoStage.SameAsIpu, AutoStage.SameAsIpu), TypeError, "AutoStage"),
        )
    ),
    (lambda: PipelinedExecution(["A", "B"], "C").stage("Z"), AssertionError, r"Unknown block 'Z'.*'A', 'B', 'C'"),
    *((lambda m=m: PipelinedExecution(m).stage("A"), AssertionError, "Unknown block 'A'.*none") for m in AutoStage),
    (lambda: PipelinedExecution("A", "B").place("C", 0), AssertionError, r"Unknown Block 'C'.*'A', 'B'.*useAutoId"),
    (lambda: PipelinedExecution().place(5, 0), AssertionError, NO_STRINGS),
    *((lambda i=i: PipelinedExecution().place("A", i), AssertionError, "must be an int") for i in ("1", 1.5)),
    (lambda: PipelinedExecution(Stage("A").ipu(-1)).place("A", None), Error, "Block 'A' is placed on IPU -1"),
    (lambda: PipelinedExecution().place("A", -1), Error, "Block 'A' is placed on IPU -1"),
    *(
        (lambda args=args: Phase(*args), AssertionError, "must either be block IDs")
        for args in (("A", Stage("B")), (1,), (["A"],), (Phase("A"),))
    ),
    (lambda: Phase(Stage("A"), Stage("B")).ipus(2), AssertionError, "2 stages but you provided 1"),
    *(
        (lambda kind=kind, args=args: kind(*args), AssertionError, words)
        for kind in PHASED
        for args, words in (
            ((), "no AutoStage for PhasedExecution"),
            ((AutoStage.SameAsIpu,), "no AutoStage for PhasedExecution"),
            ((("A", "B"),), "several arguments"),
            (([Phase("A"), Phase("B")],), "must either be block IDs"),
            (("A", ["B", "A"]), TWICE),
            ((3,), "A phase is"),
        )
    ),
    *(
        (lambda kind=kind, use=use: use(kind("A", "B")), error, words)
        for kind in PHASED
        for use, error, words in (
            (lambda s: s.phase(-1), AssertionError, "start at 0; got -1"),
            (lambda s: s.phase("0"), AssertionError, "an int; got '0'"),
            (lambda s: s.phase(2), IndexError, "index"),
            (lambda s: s.stage("C"), AssertionError, "Unknown block 'C'"),
            (lambda s: s.place("C", 0), AssertionError, r"Unknown Block 'C'.*'A', 'B'"),
            (lambda s: s.place("A", None), AssertionError, "no IPU was specified for block A"),
            (lambda s: s.useSeparateBackwardPhase(1), AssertionError, "takes a bool; got 1"),
        )
    ),
    *(
        (
            lambda b=b, ipu=ipu: ParallelPhasedExecution("A", "B").place(b, ipu),
            Error,
            "even phases on even IPUs and odd",
        )
        for b, ipu in (("A", 1), ("B", 0), ("B", 2))
    ),
    (lambda: SerialPhasedExecution("A").setTensorsLiveness(1), AssertionError, "takes a Liveness; got 1"),
    (lambda: ParallelPhasedExecution("A").sendTensorsOffChipAfterFwd(1), AssertionError, "takes a bool; got 1"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_what_is_refused(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


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


# The worked examples of section 3.4, with AutoStage.SameAsIpu, AutoStage.AutoIncrement and two listed blocks.
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
@pytest.mark.parametrize(("args", "column"), [((), 1), ((AutoStage.SameAsIpu,), 1), ((INCREMENT,), 2), (("A", "B"), 3)])
@pytest.mark.parametrize("strategy", STAGED)
def test_worked_examples(example: Any, args: tuple[Any, ...], column: int, strategy: type[PipelinedExecution]) -> None:
    placing, expected = strategy(*args), example[column]
    if isinstance(expected, str):
        with pytest.raises(AssertionError, match=expected):
            places(placing, example[0])
    else:
        assert places(placing, example[0]) == expected


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
        "tensors_liveness": Liveness.OffChipAfterEachPhase,
    }  # fmt: skip
    assert parallel.backendOptions() == {
        "execution_mode": 2, "serial_phases_execution": False, "separate_backward_phase": False,
        "tensors_liveness": Liveness.OffChipAfterFwd,
    }  # fmt: skip
    assert parallel.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] is Liveness.AlwaysLive


@pytest.mark.parametrize(
    ("liveness", "separate", "phases", "spacing"),
    [
        (Liveness.AlwaysLive, False, 3, 1),
        (Liveness.AlwaysLive, True, 4, 1),
        (Liveness.OffChipAfterFwd, False, 6, 1),
        (Liveness.OffChipAfterFwd, True, 6, 1),
        (Liveness.OffChipAfterFwdNoOverlap, False, 8, 2),
        (Liveness.OffChipAfterEachPhase, False, 12, 4),
    ],
)
def test_phase_counts_of_section_5_2(liveness: Liveness, separate: bool, phases: int, spacing: int) -> None:
    strategy = SerialPhasedExecution("A", "B", "C").setTensorsLiveness(liveness).useSeparateBackwardPhase(separate)
    assert strategy.total_phases() == phases
    assert strategy.phase_number(2) == 2 * spacing


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda strategy: pickle.loads(pickle.dumps(strategy))])
@pytest.mark.parametrize(
    "build",
    [
        PipelinedExecution,
        lambda: PipelinedExecution(INCREMENT),
        lambda: ShardedExecution("A", Stage("B").ipu(4)),
        lambda: SerialPhasedExecution("A", Phase(Stage("B"), Stage("C"))),
        lambda: ParallelPhasedExecution(["A", "B"]),
    ],
)
def test_copies_place_alike_and_independently(build: Callable[[], Any], duplicate: Callable[[Any], Any]) -> None:
    original = build()
    original.place("A", 0)
    copied = duplicate(original)
    assert copied.place("A", 2) == original.place("A", 2)
    assert copied.backendOptions() == original.backendOptions()
    if isinstance(original, PipelinedExecution) and not isinstance(original, ShardedExecution):
        copied.place("only in the copy", 6)
        assert original.place("B", 1).stage == build().place("B", 1).stage + (original._auto == 1)
