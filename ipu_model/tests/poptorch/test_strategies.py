"""Stages and phases: where strategies place blocks, and what phased models compute (execution reference, 2 to 5)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Module, X, Y, inference, quiet, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.step import Placement
from poptorch import AutoStage, Liveness, Phase, PipelinedExecution, ShardedExecution, Stage
from poptorch.options import ParallelPhasedExecution, SerialPhasedExecution

STAGED, PHASED = (PipelinedExecution, ShardedExecution), (SerialPhasedExecution, ParallelPhasedExecution)


def test_a_stage_lists_blocks_and_may_fix_its_ipu() -> None:
    stage = Stage("A", "B")
    assert stage.blocks == ("A", "B")
    assert stage.ipu(3) is stage
    assert Stage().blocks == ()


@pytest.mark.parametrize("strategy", STAGED)
def test_stages_are_given_as_stages_ids_or_lists_of_ids(strategy: type[PipelinedExecution]) -> None:
    stages = strategy(Stage("A").ipu(5), "B", ["C", "D"], ("E",), (letter for letter in "FG"))
    placed = [stages.place(block, None) for block in "ABCDEFG"]
    assert [(p.stage, p.ipu) for p in placed] == [(0, 5), (1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (4, 4)]
    stages.stage("D").ipu(4)  # looked up to fix it
    assert stages.place("C", None) == Placement("C", 2, 4)


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
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    first_uses = list(dict.fromkeys(blocks))
    for block in blocks:
        assert strategy.place(block, None).stage == 1 + first_uses.index(block)


@pytest.mark.parametrize("falsy", [None, "", 0])
def test_automatic_ids_count_unnamed_blocks_and_go_on_unless_restarted(falsy: Any) -> None:
    """Section 2.6."""
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    assert [strategy.place(user_id, None).block for user_id in (falsy, "A", falsy)] == ["0", "A", "1"]
    assert strategy.place(falsy, None) == Placement("2", 4, 4)
    strategy.use_auto_id()
    assert strategy.place(falsy, None) == Placement("0", 1, 1)  # The stage of the first trace is used again.


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
    for strategy, is_serial, separate, liveness in (
        (serial, True, True, Liveness.OffChipAfterEachPhase),
        (parallel, False, False, Liveness.OffChipAfterFwd),
    ):
        assert strategy.backendOptions() == {
            "execution_mode": 2, "serial_phases_execution": is_serial, "separate_backward_phase": separate,
            "tensors_liveness": liveness,
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
    PipelinedExecution, lambda: PipelinedExecution(AutoStage.AutoIncrement),
    lambda: ShardedExecution("A", Stage("B").ipu(4)), lambda: ParallelPhasedExecution(["A", "B"]),
    lambda: SerialPhasedExecution("A", Phase(Stage("B"), Stage("C"))),
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


def phased(*ipus: int | None) -> Module:
    """Return a model of two layers in the blocks "a" and "b", on these IPUs, with the loss in "b"."""
    torch.manual_seed(0)

    def forward(model: Any, x: Tensor, y: Tensor | None = None) -> Any:
        with poptorch.Block("a", ipu_id=ipus[0]):
            x = torch.tanh(model.first(x))
        with poptorch.Block("b", ipu_id=ipus[1]):
            out = model.second(x)
            return out if y is None else (out, nn.functional.mse_loss(out, y))

    return Module(forward, first=nn.Linear(3, 4), second=nn.Linear(4, 2))


STRATEGIES: dict[str, tuple[tuple[int, int], Any]] = {
    "serial": ((0, 0), lambda: SerialPhasedExecution("a", "b")),
    "serial on two IPUs": ((0, 1), lambda: SerialPhasedExecution(Phase("a"), Phase("b"))),
    "one phase of two stages": ((0, 1), lambda: SerialPhasedExecution(Phase(Stage("a"), Stage("b")))),
    "parallel": ((0, 1), lambda: ParallelPhasedExecution("a", "b")),
    "separate backward": ((0, 0), lambda: SerialPhasedExecution("a", "b").useSeparateBackwardPhase()),
    "parallel off chip": ((0, 1), lambda: ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd()),
} | {
    liveness.name: ((0, 0), lambda given=liveness: SerialPhasedExecution("a", "b").setTensorsLiveness(given))
    for liveness in Liveness
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_and_inference_equal_plain_pytorch(name: str) -> None:
    ipus, strategy = STRATEGIES[name]
    model = phased(*ipus)
    torch.testing.assert_close(inference(model, quiet(setExecutionStrategy=strategy()))(X), model(X).detach())
    oracle = copy.deepcopy(model)
    executor = training(model, quiet(accumulation=2, setExecutionStrategy=strategy()), momentum=0.9)
    optimizer = torch.optim.SGD(oracle.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        out, loss = executor(X, Y)
        optimizer.zero_grad()
        expected, loss_of_all = oracle(X, Y)
        loss_of_all.backward()  # The mean over two micro-batches is that over all rows.
        optimizer.step()
        torch.testing.assert_close(out, expected[2:].detach())
        assert loss.dim() == 0
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours.data, theirs.data)


def runs_as_placed(strategy: Any, *ipus: int | None, before: float = 1.0) -> None:
    """Run a model, whose ops may begin before the first block, and compare it with plain PyTorch."""
    model = phased(*ipus)
    whole = Module(lambda m, x: m.inner(x * before), inner=model)
    found = inference(whole, quiet(setExecutionStrategy=strategy))(X)
    torch.testing.assert_close(found, model(X * before).detach())


def test_the_ipus_of_a_phase_or_stage_stand_in_for_those_of_blocks() -> None:
    strategy = SerialPhasedExecution("a", "b")
    strategy.phase(0).ipus(0)
    strategy.phase(1).ipus(1)
    runs_as_placed(strategy, None, None)
    runs_as_placed(SerialPhasedExecution("a", Stage("b").ipu(0)), 0, 2)
    runs_as_placed(SerialPhasedExecution("a", "b"), 0, 0, before=2.0)  # in phase 0


def test_places_are_checked_when_a_model_is_compiled() -> None:
    with pytest.raises(poptorch.Error, match=r"'b' is in phase 0 but .* 'a', phase 1"):
        runs_as_placed(SerialPhasedExecution("b", "a"), 0, 0)
    assert not poptorch.isRunningOnIpu()


def test_inference_without_accumulation_suggests_no_pipeline() -> None:
    options = quiet(accumulation=2, setExecutionStrategy=SerialPhasedExecution("a", "b"))
    with pytest.raises(poptorch.Error, match="gradientAccumulation to 1") as refusal:
        inference(phased(0, 0), options)
    assert "pipeline" not in refusal.value.message


def cycles(strategy: Any, ipus: tuple[int, int], on_chip: bool = False) -> int:
    options = quiet(setExecutionStrategy=strategy, outputMode=poptorch.OutputMode.All, logCycleCount=True)
    if on_chip:
        location = poptorch.TensorLocationSettings().useOnChipStorage(True)
        for place in ("Activation", "Weight", "Optimizer", "Accumulator"):
            getattr(options.TensorLocations, f"set{place}Location")(location)
    executor = training(phased(*ipus), options)
    executor(X, Y)
    return executor.cycleCount()


@pytest.mark.parametrize("name", ["serial", "serial on two IPUs", "one phase of two stages", "parallel"])
def test_tensors_off_chip_cost_time_and_kept_on_chip_what_shards_cost(name: str) -> None:
    ipus, strategy = STRATEGIES[name]
    sharded = cycles(poptorch.ShardedExecution("a", "b"), ipus)
    assert cycles(strategy(), ipus) > sharded
    assert cycles(strategy(), ipus, on_chip=True) == sharded
