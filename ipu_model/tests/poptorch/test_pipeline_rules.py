"""Placement by real traces, and what a pipeline needs (execution reference, sections 3.4 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from executor_support import quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of
from poptorch import AutoStage, PipelinedExecution, ShardedExecution, Stage

Blocks = Sequence[tuple[str | None, int | None]]


class Chain(nn.Module):
    """Runs one layer in each of the blocks `(user_id, ipu_id)`; an id of `"-"` stands for ops outside any."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.blocks = blocks
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in blocks)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        for (user_id, ipu_id), layer in zip(self.blocks, self.layers):
            if user_id != "-":
                poptorch.Block.start(user_id, ipu_id)
            x = layer(x)
        return x if y is None else (x, nn.functional.mse_loss(x, y))


def trace(blocks: Blocks, strategy: Any, *, training: bool = False, micro_batches: int = 64) -> Any:
    """Compile a chain with plenty of micro-batches and return its graph."""
    options = quiet().setExecutionStrategy(strategy)
    model = Chain(blocks)
    x = torch.ones(micro_batches, 2)
    if training:
        options.Training.gradientAccumulation(micro_batches)
        executor = poptorch.trainingModel(model, options)
        executor.compile(x, x)
    else:
        executor = poptorch.inferenceModel(model, options.deviceIterations(micro_batches))
        executor.compile(x)
    graph = executor._compiled.graph
    executor.destroy()
    return graph


def places(blocks: Blocks, strategy: Any) -> list[tuple[int, int]]:
    """Return (stage, ipu) of the matrix product of each layer."""
    graph = trace(blocks, strategy)
    products = [node for node in graph.ops.nodes if "addmm" in str(node.target)]
    return [(info_of(node).placement.stage, info_of(node).placement.ipu) for node in products]


AUTO = AutoStage.AutoIncrement
BY_IPU, AB = [(None, 0), (None, 1), (None, 2), (None, 1)], [("A", None), ("B", None)]
DOWN, TWICE = [("A", 3), ("B", 2)], [("A", 2), ("A", 5)]
LEGACY = [("-", None), (None, 1)]


class TestTheTableOfPlacements:
    @pytest.mark.parametrize(
        ("blocks", "arguments", "expected"),
        [
            (BY_IPU[:3], (), [(0, 0), (1, 1), (2, 2)]),
            (BY_IPU, (AUTO,), [(1, 0), (2, 1), (3, 2), (4, 1)]),
            (AB, (AUTO,), [(1, 1), (2, 2)]),
            (AB, ("A", "B"), [(0, 0), (1, 1)]),
            (DOWN, (AUTO,), [(1, 3), (2, 2)]),
            (DOWN, ("A", "B"), [(0, 3), (1, 2)]),
            (TWICE, (), [(2, 2), (2, 5)]),
            (TWICE, (AUTO,), [(1, 2), (1, 5)]),
            (TWICE, ("A", "B"), [(0, 2), (0, 5)]),
            (LEGACY, (), [(0, 0), (1, 1)]),
            (LEGACY, (AUTO,), [(0, 0), (1, 1)]),
        ],
    )
    @pytest.mark.parametrize("kind", [PipelinedExecution, ShardedExecution])
    def test_stage_and_ipu_of_each_block(self, kind: Any, blocks: Blocks, arguments: Any, expected: Any) -> None:
        assert places(blocks, kind(*arguments)) == expected

    @pytest.mark.parametrize(
        ("blocks", "arguments", "words"),
        [
            (BY_IPU, ("A", "B"), "Unknown Block '0'.*'A', 'B'"),
            (AB, (), "no IPU was specified for block A"),
            ([("A", None), ("C", None)], ("A", "B"), "Unknown Block 'C'.*'A', 'B'"),
        ],
    )
    def test_blocks_without_a_place(self, blocks: Blocks, arguments: Any, words: str) -> None:
        with pytest.raises(AssertionError, match=words):
            places(blocks, PipelinedExecution(*arguments))

    def test_the_ipu_of_a_stage_wins_over_that_of_a_block(self) -> None:
        strategy = PipelinedExecution(Stage("A").ipu(1), Stage("B").ipu(0))
        assert places([("A", 5), ("B", None)], strategy) == [(0, 1), (1, 0)]
        strategy = PipelinedExecution("A", "B")
        strategy.stage("B").ipu(3)
        assert places(AB, strategy) == [(0, 0), (1, 3)]

    def test_several_blocks_form_one_stage(self) -> None:
        strategy = PipelinedExecution(Stage("A", "B"), ["C", "D"])
        assert places([(name, None) for name in "ABCD"], strategy) == [(0, 0), (0, 0), (1, 1), (1, 1)]

    @pytest.mark.parametrize("blocks", [BY_IPU, DOWN])
    def test_going_back_to_an_earlier_stage_fails_in_a_pipeline_only(self, blocks: Blocks) -> None:
        with pytest.raises(poptorch.Error, match=r"must not decrease along the data flow.*AutoStage.AutoIncrement"):
            places(blocks, PipelinedExecution())
        assert places(blocks, ShardedExecution())

    def test_backward_ops_are_where_their_forward_ops_are(self) -> None:
        graph = trace([("A", 0), ("B", 1)], PipelinedExecution(), training=True)
        backward = [node for node in graph.ops.nodes if info_of(node).phase == "backward" and ".mm" in str(node.target)]
        assert {info_of(node).placement.ipu for node in backward} == {0, 1}

    def test_the_annotation_does_not_change_values(self) -> None:
        torch.manual_seed(0)
        model = Chain([("A", 0), ("B", 1), ("C", 2)])
        x = torch.randn(6, 2)
        executor = poptorch.inferenceModel(model, quiet().deviceIterations(3))
        torch.testing.assert_close(executor(x), model(x).detach())


# Blocks, arguments of the strategy, and the stages S that the rule counts: 1 + entries on another IPU than the entry
# before, IPU 0 at first.
LAYOUTS: dict[str, tuple[Blocks, Any, int]] = {
    "two": ([("A", 0), ("B", 1)], (), 2),
    "four": ([("A", 0), ("B", 1), ("C", 2), ("D", 3)], (), 4),
    "merged": ([("A", 0), ("B", 0), ("C", 1)], (), 2),
    "coming back": ([("A", 0), ("B", 1), ("C", 0)], (AUTO,), 3),
    "not from 0": ([("A", 1), ("B", 2)], (), 3),
    "unannotated start": ([("-", None), ("B", 1)], (), 2),
    "lists": ([("A", None), ("B", None), ("C", None), ("D", None)], (["A", "B"], ["C", "D"]), 2),
    "auto increment": ([("A", None), ("B", None), ("C", None)], (AUTO,), 4),
}
each_layout = pytest.mark.parametrize(("blocks", "arguments", "stages"), LAYOUTS.values(), ids=LAYOUTS)


class TestMinima:
    @staticmethod
    def train(blocks: Blocks, strategy: Any, accumulation: int) -> Any:
        options = quiet().setExecutionStrategy(strategy)
        options.Training.gradientAccumulation(accumulation)
        executor = poptorch.trainingModel(Chain(blocks), options)
        return executor(torch.ones(accumulation, 2), torch.ones(accumulation, 2))

    @staticmethod
    def infer(blocks: Blocks, strategy: Any, iterations: int) -> Any:
        options = quiet().setExecutionStrategy(strategy).deviceIterations(iterations)
        return poptorch.inferenceModel(Chain(blocks), options)(torch.ones(iterations, 2))

    @each_layout
    def test_training_needs_twice_the_stages_less_one(self, blocks: Blocks, arguments: Any, stages: int) -> None:
        needed = 2 * stages - 1
        with pytest.raises(poptorch.Error) as refusal:
            self.train(blocks, PipelinedExecution(*arguments), needed - 1)
        message = refusal.value.message
        assert message.startswith("poptorch.Options().Training.gradientAccumulation")
        assert f"must be greater than or equal to the number of pipeline stages ({needed})" in message
        assert "poptorch.PipelinedExecution" in message
        assert (
            f"{stages} pipeline stages in PopTorch will have an additional {stages - 1} stages when training" in message
        )
        assert "poptorch.ShardedExecution" in message
        for enough in (needed, needed + 1):
            assert self.train(blocks, PipelinedExecution(*arguments), enough)

    @each_layout
    def test_inference_needs_as_many_iterations_as_stages(self, blocks: Blocks, arguments: Any, stages: int) -> None:
        with pytest.raises(poptorch.Error) as refusal:
            self.infer(blocks, PipelinedExecution(*arguments), stages - 1)
        message = refusal.value.message
        assert message.startswith("poptorch.Options().deviceIterations must be greater than or equal")
        assert f"the number of pipeline stages ({stages})" in message
        for enough in (stages, stages + 1):
            assert self.infer(blocks, PipelinedExecution(*arguments), enough).shape == (enough, 2)

    @each_layout
    def test_sharded_execution_has_no_minimum(self, blocks: Blocks, arguments: Any, stages: int) -> None:
        assert stages > 1
        assert self.train(blocks, ShardedExecution(*arguments), 1)
        assert self.infer(blocks, ShardedExecution(*arguments), 1).shape == (1, 2)

    @pytest.mark.parametrize("blocks", [[("A", 0), ("B", 0)], [("-", None)], [("A", 2), ("B", 2)]])
    def test_one_ipu_is_no_pipeline(self, blocks: Blocks) -> None:
        assert self.train(blocks, PipelinedExecution(), 1)
        assert self.infer(blocks, PipelinedExecution(), 1).shape == (1, 2)

    def test_a_block_without_ops_makes_no_pipeline_but_counts_in_one(self) -> None:
        class Empty(nn.Module):
            def __init__(self, second: int) -> None:
                super().__init__()
                self.second = second

            def forward(self, x: Tensor) -> Tensor:
                with poptorch.Block("A", ipu_id=0):
                    x = x + 1
                with poptorch.Block("empty", ipu_id=1):
                    pass
                with poptorch.Block("C", ipu_id=self.second):
                    return x + 1

        run = poptorch.inferenceModel(Empty(0), quiet())
        assert run(torch.ones(1)).item() == 3
        with pytest.raises(poptorch.Error, match=r"pipeline stages \(3\)"):
            poptorch.inferenceModel(Empty(2), quiet().deviceIterations(2))(torch.ones(2))

    def test_the_model_is_usable_after_the_refusal(self) -> None:
        model = Chain([("A", 0), ("B", 1)])
        x = torch.ones(3, 2)
        with pytest.raises(poptorch.Error, match=r"\(3\)"):
            poptorch.trainingModel(model, quiet())(x, x)
        options = quiet()
        options.Training.gradientAccumulation(3)
        import gc

        gc.collect()
        assert poptorch.trainingModel(model, options)(x, x)[0].shape == (1, 2)

    @settings(max_examples=25)
    @given(ipus=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def test_the_minimum_for_any_order_of_ipus(self, ipus: list[int]) -> None:
        """Counted again from the rule's own words, for automatic stages, which never go down."""
        switches = sum(a != b for a, b in zip([0, *ipus], ipus))
        needed = 1 + switches if len(set(ipus)) > 1 else 1
        blocks = [(f"b{i}", ipu) for i, ipu in enumerate(ipus)]
        if needed > 1:
            with pytest.raises(poptorch.Error, match=rf"\({needed}\)"):
                self.infer(blocks, PipelinedExecution(AUTO), needed - 1)
        assert self.infer(blocks, PipelinedExecution(AUTO), needed).shape == (needed, 2)


class TestNumberOfIpus:
    def test_sixty_four_are_the_limit_of_a_process(self) -> None:
        options = quiet().replicationFactor(64).deviceIterations(2)
        blocks = [("A", 0), ("B", 1)]
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\): 2 for the model x 64 replicas"):
            poptorch.inferenceModel(Chain(blocks), options)(torch.ones(128, 2))
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(65\)"):
            poptorch.inferenceModel(Chain([("A", 64)]), quiet())(torch.ones(1, 2))

    def test_rounding_up_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        options = quiet().autoRoundNumIPUs(True).deviceIterations(3)
        blocks = [("A", 0), ("B", 1), ("C", 2)]
        poptorch.inferenceModel(Chain(blocks), options)(torch.ones(3, 2))
        assert "uses 3 IPUs: 4 are reserved, the next power of 2, and 1 of them left idle" in caplog.text

    def test_without_it_the_log_says_what_hardware_would_do(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", logger="poptorch::python"):
            poptorch.inferenceModel(Chain([("A", 2)]), quiet())(torch.ones(1, 2))
        assert "The model specifies 3 IPUs" in caplog.text
        assert "autoRoundNumIPUs(True)" in caplog.text
