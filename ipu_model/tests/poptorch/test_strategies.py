"""Stages and phases: where strategies place blocks, what they compute and need (execution reference, 2 to 5)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from executor_support import Module, X, Y, in_plain_pytorch, inference, pickled, quiet, training
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of
from ipu_model.step import Placement
from poptorch import AutoStage, Liveness, Phase, PipelinedExecution, ShardedExecution, Stage
from poptorch.options import ParallelPhasedExecution, SerialPhasedExecution


@pytest.mark.parametrize("strategy", [PipelinedExecution, ShardedExecution])
def test_stages_are_given_as_stages_ids_or_lists_of_ids(strategy: type[PipelinedExecution]) -> None:
    stages = strategy(Stage("A").ipu(5), "B", ["C", "D"], ("E",), (letter for letter in "FG"))
    placed = [stages.place(block, None) for block in "ABCDEFG"]
    assert [(p.stage, p.ipu) for p in placed] == [(0, 5), (1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (4, 4)]
    stage = stages.stage("D")  # looked up to fix its IPU
    assert stage.ipu(4) is stage
    assert (stage.blocks, Stage().blocks) == (("C", "D"), ())
    assert stages.place("C", None) == Placement("C", 2, 4)


@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.none() | st.integers(0, 7)), max_size=12),
    st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 7)),
)
def test_the_ipu_is_the_stages_else_the_blocks_else_the_stage_number(entries, fixed) -> None:
    strategy = PipelinedExecution(*"ABCD")
    for block, ipu in fixed.items():
        strategy.stage(block).ipu(ipu)
    for user_id, ipu_id in entries:
        number = "ABCD".index(user_id)
        ipu = fixed.get(user_id, number if ipu_id is None else ipu_id)
        assert strategy.place(user_id, ipu_id) == Placement(user_id, number, ipu)


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


@pytest.mark.parametrize("strategy", [SerialPhasedExecution, ParallelPhasedExecution])
def test_phases_in_all_their_notations(strategy: Any) -> None:
    phased = strategy(Phase("A"), Stage("B"), "C", [Stage("D"), Stage("E")], ["F", "G"])
    for block, phase, stage in zip("ABCDEFG", (0, 1, 2, 3, 3, 4, 4), (0, 0, 0, 0, 1, 0, 0), strict=True):
        assert phased.place(block, phase) == Placement(block, stage, ipu=phase, phase=phase)
        assert block in phased.stage(block).blocks
        assert block in phased.phase(phase).stages[stage].blocks


def test_settings_of_strategies() -> None:
    assert issubclass(ShardedExecution, PipelinedExecution)
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert ShardedExecution().backendOptions() == {"execution_mode": 1}
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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
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
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_and_inference_equal_plain_pytorch(name: str) -> None:
    ipus, strategy = STRATEGIES[name]
    model = phased(*ipus)
    torch.testing.assert_close(inference(model, quiet(setExecutionStrategy=strategy()))(X), model(X).detach())
    oracle = copy.deepcopy(model)
    executor = training(model, quiet(accumulation=2, setExecutionStrategy=strategy()))
    for _ in range(3):
        out, loss = executor(X, Y)
        torch.testing.assert_close(out, oracle(X, Y)[0][2:].detach())
        assert loss.dim() == 0
        in_plain_pytorch(oracle, (X, Y))  # the mean over two micro-batches is that over all rows
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours.data, theirs.data)


def runs_as_placed(strategy: Any, *ipus: int | None) -> None:
    """Run a model, whose ops begin before the first block, and compare it with plain PyTorch."""
    model = phased(*ipus)
    whole = Module(lambda m, x: m.inner(x * 2), inner=model)
    torch.testing.assert_close(inference(whole, quiet(setExecutionStrategy=strategy))(X), model(X * 2).detach())


def test_the_ipus_of_a_phase_or_stage_stand_in_for_those_of_blocks() -> None:
    strategy = SerialPhasedExecution("a", "b")
    strategy.phase(0).ipus(0)
    strategy.phase(1).ipus(1)
    runs_as_placed(strategy, None, None)
    runs_as_placed(SerialPhasedExecution("a", Stage("b").ipu(0)), 0, 2)


def test_places_are_checked_when_a_model_is_compiled() -> None:
    with pytest.raises(poptorch.Error, match=r"'b' is in phase 0 but .* 'a', phase 1"):
        runs_as_placed(SerialPhasedExecution("b", "a"), 0, 0)
    assert not poptorch.isRunningOnIpu()


Blocks = Sequence[tuple[str | None, int | None]]
AUTO = AutoStage.AutoIncrement


def chain(blocks: Blocks) -> Module:
    """Return a model with one layer in each of the blocks `(user_id, ipu_id)`; `"-"` stands for ops outside any."""

    def forward(model: Any, x: Tensor, y: Tensor | None = None) -> Any:
        for (user_id, ipu_id), layer in zip(blocks, model.layers):
            if user_id != "-":
                poptorch.Block.start(user_id, ipu_id)
            x = layer(x)
        return x if y is None else (x, nn.functional.mse_loss(x, y))

    return Module(forward, layers=nn.ModuleList(nn.Linear(2, 2) for _ in blocks))


def train(blocks: Blocks, strategy: Any, accumulation: int) -> poptorch.PoplarExecutor:
    executor = poptorch.trainingModel(chain(blocks), quiet(accumulation=accumulation, setExecutionStrategy=strategy))
    x = torch.ones(accumulation, 2)
    assert executor(x, x)[0].shape == (1, 2)
    return executor


def infer(blocks: Blocks, strategy: Any, iterations: int) -> poptorch.PoplarExecutor:
    model, x = chain(blocks), torch.ones(iterations, 2)
    executor = inference(model, quiet(setExecutionStrategy=strategy, deviceIterations=iterations))
    torch.testing.assert_close(executor(x), model(x).detach())
    return executor


def places(blocks: Blocks, strategy: Any) -> list[tuple[int, int]]:
    executor = infer(blocks, strategy, 8)
    assert executor._compiled is not None
    found = [info_of(node).placement for node in executor._compiled.graph.ops.nodes if "addmm" in str(node.target)]
    return [(place.stage, place.ipu) for place in found]


BY_IPU, AB = [(None, 0), (None, 1), (None, 2), (None, 1)], [("A", None), ("B", None)]
DOWN, TWICE, LEGACY = [("A", 3), ("B", 2)], [("A", 2), ("A", 5)], [("-", None), (None, 1)]


class TestTheTableOfPlacements:
    @pytest.mark.parametrize("kind", [PipelinedExecution, ShardedExecution])
    @pytest.mark.parametrize(
        ("blocks", "arguments", "expected"),
        [
            (BY_IPU[:3], (), [(0, 0), (1, 1), (2, 2)]),
            (BY_IPU, (AUTO,), [(1, 0), (2, 1), (3, 2), (4, 1)]),
            (AB, (AUTO,), [(1, 1), (2, 2)]),
            (AB, ("A", "B"), [(0, 0), (1, 1)]),
            (DOWN, (AUTO,), [(1, 3), (2, 2)]),
            (DOWN, ("A", "B"), [(0, 3), (1, 2)]),
            (TWICE, (AutoStage.SameAsIpu,), [(2, 2), (2, 5)]),
            (TWICE, (AUTO,), [(1, 2), (1, 5)]),
            (TWICE, ("A", "B"), [(0, 2), (0, 5)]),
            (LEGACY, (), [(0, 0), (1, 1)]),
            (LEGACY, (AUTO,), [(0, 0), (1, 1)]),
            ([("A", None), ("B", 5), ("C", 5)], (Stage("A", "B").ipu(3), ["C"]), [(0, 3), (0, 3), (1, 5)]),
        ],
    )
    def test_stage_and_ipu_of_each_block(self, kind: Any, blocks: Blocks, arguments: Any, expected: Any) -> None:
        assert places(blocks, kind(*arguments)) == expected

    @pytest.mark.parametrize("blocks", [BY_IPU, DOWN])
    def test_going_back_to_an_earlier_stage_fails_in_a_pipeline_only(self, blocks: Blocks) -> None:
        with pytest.raises(poptorch.Error, match=r"must not decrease along the data flow.*AutoStage.AutoIncrement"):
            places(blocks, PipelinedExecution())
        assert places(blocks, ShardedExecution()) == [(ipu, ipu) for _, ipu in blocks]


# Blocks, arguments of the strategy, and the stages S that the rule counts: 1 + entries on another IPU than the entry
# before, IPU 0 at first.
LAYOUTS: dict[str, tuple[Blocks, Any, int]] = {
    "merged": ([("A", 0), ("B", 0), ("C", 1)], (), 2),
    "coming back": ([("A", 0), ("B", 1), ("C", 0)], (AUTO,), 3),
    "not from 0": ([("A", 1), ("B", 2)], (), 3),
    "unannotated start": ([("-", None), ("B", 1)], (), 2),
    "lists": ([("A", None), ("B", None), ("C", None), ("D", None)], (["A", "B"], ["C", "D"]), 2),
    "auto increment": ([("A", None), ("B", None), ("C", None)], (AUTO,), 4),
}


class TestMinima:
    @pytest.mark.parametrize(("blocks", "arguments", "stages"), LAYOUTS.values(), ids=LAYOUTS)
    def test_of_training_and_inference(self, blocks: Blocks, arguments: Any, stages: int) -> None:
        needed = 2 * stages - 1
        words = (
            r"Options\(\).Training.gradientAccumulation must be greater than or equal to the number of pipeline "
            rf"stages \({needed}\) when using poptorch\.PipelinedExecution.*{stages} pipeline stages in PopTorch will "
            rf"have an additional {stages - 1} stages when training.*poptorch\.ShardedExecution"
        )
        with pytest.raises(poptorch.Error, match=words):
            train(blocks, PipelinedExecution(*arguments), needed - 1)
        words = rf"Options\(\)\.deviceIterations must be greater .* the number of pipeline stages \({stages}\)"
        with pytest.raises(poptorch.Error, match=words):
            infer(blocks, PipelinedExecution(*arguments), stages - 1)
        for more in (0, 1):
            train(blocks, PipelinedExecution(*arguments), needed + more)
            infer(blocks, PipelinedExecution(*arguments), stages + more)
        train(blocks, ShardedExecution(*arguments), 1)
        infer(blocks, ShardedExecution(*arguments), 1)

    def test_a_block_without_ops_makes_no_pipeline_but_counts_in_one(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("A", ipu_id=0):
                x = x + 1
            with poptorch.Block("empty", ipu_id=1):
                pass
            with poptorch.Block("C", ipu_id=model.last_ipu):
                return x + 1

        assert inference(Module(forward, last_ipu=0))(torch.ones(1)).item() == 3
        with pytest.raises(poptorch.Error, match=r"pipeline stages \(3\)"):
            inference(Module(forward, last_ipu=2), quiet(deviceIterations=2))(torch.ones(2))

    @settings(max_examples=25)
    @given(ipus=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def test_the_minimum_for_any_order_of_ipus(self, ipus: list[int]) -> None:
        """Counted again from the rule's own words, for automatic stages, which never go down."""
        switches = sum(a != b for a, b in zip([0, *ipus], ipus))
        needed = 1 + switches if len(set(ipus)) > 1 else 1
        blocks = [(f"b{i}", ipu) for i, ipu in enumerate(ipus)]
        if needed > 1:
            with pytest.raises(poptorch.Error, match=rf"\({needed}\)"):
                infer(blocks, PipelinedExecution(AUTO), needed - 1)
        infer(blocks, PipelinedExecution(AUTO), needed)


class TestNumberOfIpus:
    def test_the_log_says_whether_they_are_rounded_up(self, caplog: pytest.LogCaptureFixture) -> None:
        options = quiet(autoRoundNumIPUs=True, deviceIterations=3)
        inference(chain([("A", 0), ("B", 1), ("C", 2)]), options)(torch.ones(3, 2))
        assert "uses 3 IPUs: 4 are reserved, the next power of 2, and 1 of them left idle" in caplog.text
        with caplog.at_level("INFO", logger="poptorch::python"):
            infer([("A", 2)], PipelinedExecution(), 1)
        assert "The model specifies 3 IPUs" in caplog.text
        assert "autoRoundNumIPUs(True)" in caplog.text
