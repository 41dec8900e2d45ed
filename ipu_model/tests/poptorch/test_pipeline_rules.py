"""Placement by real traces, and what a pipeline needs (execution reference, sections 3.4 and 4)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of
from poptorch import AutoStage, PipelinedExecution, ShardedExecution, Stage

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
    """Train once with so many micro-batches."""
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
    """Return (stage, ipu) of the matrix product of each layer."""
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

    def test_backward_ops_are_where_their_forward_ops_are(self) -> None:
        graph = train([("A", 0), ("B", 1)], PipelinedExecution(), 8)._compiled.graph
        infos = [info_of(node) for node in graph.ops.nodes if ".mm" in str(node.target)]
        assert {info.placement.ipu for info in infos if info.phase == "backward"} == {0, 1}


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


class TestMinima:
    @pytest.mark.parametrize(("blocks", "arguments", "stages"), LAYOUTS.values(), ids=LAYOUTS)
    def test_of_training_and_inference(self, blocks: Blocks, arguments: Any, stages: int) -> None:
        needed = 2 * stages - 1
        with pytest.raises(poptorch.Error) as refusal:
            train(blocks, PipelinedExecution(*arguments), needed - 1)
        message = refusal.value.message
        assert message.startswith("poptorch.Options().Training.gradientAccumulation")
        for text in (
            f"must be greater than or equal to the number of pipeline stages ({needed})",
            f"{stages} pipeline stages in PopTorch will have an additional {stages - 1} stages when training",
            "poptorch.PipelinedExecution", "poptorch.ShardedExecution"
        ):  # fmt: skip
            assert text in message
        with pytest.raises(poptorch.Error, match=rf"the number of pipeline stages \({stages}\)") as refusal:
            infer(blocks, PipelinedExecution(*arguments), stages - 1)
        assert refusal.value.message.startswith("poptorch.Options().deviceIterations must be greater than or equal")
        for more in (0, 1):
            train(blocks, PipelinedExecution(*arguments), needed + more)
            infer(blocks, PipelinedExecution(*arguments), stages + more)
        train(blocks, ShardedExecution(*arguments), 1)
        infer(blocks, ShardedExecution(*arguments), 1)

    @pytest.mark.parametrize("blocks", [[("A", 0), ("B", 0)], [("-", None)], [("A", 2), ("B", 2)]])
    def test_one_ipu_is_no_pipeline(self, blocks: Blocks) -> None:
        train(blocks, PipelinedExecution(), 1)
        infer(blocks, PipelinedExecution(), 1)

    @pytest.mark.parametrize("last_ipu", [0, 2])
    def test_a_block_without_ops_makes_no_pipeline_but_counts_in_one(self, last_ipu: int) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("A", ipu_id=0):
                x = x + 1
            with poptorch.Block("empty", ipu_id=1):
                pass
            with poptorch.Block("C", ipu_id=last_ipu):
                return x + 1

        if last_ipu == 0:
            assert inference(Module(forward))(torch.ones(1)).item() == 3
        else:
            with pytest.raises(poptorch.Error, match=r"pipeline stages \(3\)"):
                inference(Module(forward), quiet(deviceIterations=2))(torch.ones(2))

    def test_the_model_is_usable_after_the_refusal(self) -> None:
        model, x = chain([("A", 0), ("B", 1)]), torch.ones(3, 2)
        with pytest.raises(poptorch.Error, match=r"\(3\)"):
            poptorch.trainingModel(model, quiet())(x, x)
        gc.collect()
        assert poptorch.trainingModel(model, quiet(accumulation=3))(x, x)[0].shape == (1, 2)

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
    def test_sixty_four_are_the_limit_of_a_process(self) -> None:
        options = quiet(replicationFactor=64, deviceIterations=2)
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\): 2 for the model x 64 replicas"):
            inference(chain([("A", 0), ("B", 1)]), options)(torch.ones(128, 2))
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(65\)"):
            infer([("A", 64)], PipelinedExecution(), 1)

    def test_the_log_says_whether_they_are_rounded_up(self, caplog: pytest.LogCaptureFixture) -> None:
        options = quiet(autoRoundNumIPUs=True, deviceIterations=3)
        inference(chain([("A", 0), ("B", 1), ("C", 2)]), options)(torch.ones(3, 2))
        assert "uses 3 IPUs: 4 are reserved, the next power of 2, and 1 of them left idle" in caplog.text
        with caplog.at_level("INFO", logger="poptorch::python"):
            infer([("A", 2)], PipelinedExecution(), 1)
        assert "The model specifies 3 IPUs" in caplog.text
        assert "autoRoundNumIPUs(True)" in caplog.text
