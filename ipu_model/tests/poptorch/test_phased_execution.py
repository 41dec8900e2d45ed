"""Phased execution: the numbers of the same model in plain PyTorch, and the rules of section 5.

The sections are those of the execution reference.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executor_support import X, Y, quiet, sgd
from torch import Tensor, nn

import poptorch
from poptorch import Liveness, ParallelPhasedExecution, Phase, SerialPhasedExecution, Stage


class Phased(nn.Module):
    """Two layers in the blocks "a" and "b", the loss in "b"; `ipus` are given to the blocks."""

    def __init__(self, *ipus: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.ipus = ipus or (0, 0)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        with poptorch.Block("a", ipu_id=self.ipus[0]):
            x = torch.tanh(self.first(x))
        with poptorch.Block("b", ipu_id=self.ipus[1]):
            out = self.second(x)
            return out if y is None else (out, nn.functional.mse_loss(out, y))


STRATEGIES: dict[str, tuple[tuple[int, int], Any]] = {
    "serial": ((0, 0), lambda: SerialPhasedExecution("a", "b")),
    "serial on two IPUs": ((0, 1), lambda: SerialPhasedExecution(Phase("a"), Phase("b"))),
    "one phase of two stages": ((0, 1), lambda: SerialPhasedExecution(Phase(Stage("a"), Stage("b")))),
    "separate backward": ((0, 0), lambda: SerialPhasedExecution("a", "b").useSeparateBackwardPhase()),
    "parallel": ((0, 1), lambda: ParallelPhasedExecution("a", "b")),
    "parallel off chip": ((0, 1), lambda: ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd()),
} | {
    each.name: ((0, 0), lambda each=each: SerialPhasedExecution("a", "b").setTensorsLiveness(each)) for each in Liveness
}


@pytest.mark.parametrize("name", STRATEGIES)
class TestNumbers:
    def test_training_equals_plain_pytorch(self, name: str) -> None:
        ipus, strategy = STRATEGIES[name]
        model = Phased(*ipus)
        oracle = copy.deepcopy(model)
        options = quiet().setExecutionStrategy(strategy())
        options.Training.gradientAccumulation(2)
        executor = poptorch.trainingModel(model, options, sgd(model, momentum=0.9))
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

    def test_inference_equals_plain_pytorch_with_one_iteration(self, name: str) -> None:
        ipus, strategy = STRATEGIES[name]
        model = Phased(*ipus)
        executor = poptorch.inferenceModel(model, quiet().setExecutionStrategy(strategy()))
        torch.testing.assert_close(executor(X), model(X).detach())


class TestRules:
    def run(self, model: nn.Module, strategy: Any) -> Tensor:
        result: Tensor = poptorch.inferenceModel(model, quiet().setExecutionStrategy(strategy))(X)
        return result

    @pytest.mark.parametrize(
        ("ipus", "strategy", "error", "words"),
        [
            ((0, 0), lambda: SerialPhasedExecution("a"), AssertionError, "Unknown Block 'b'"),
            ((0, None), lambda: SerialPhasedExecution("a", "b"), AssertionError, "no IPU was specified for block b"),
            ((0, 2), lambda: ParallelPhasedExecution("a", "b"), poptorch.Error, "odd phases on odd IPUs"),
            ((0, 0), lambda: SerialPhasedExecution("b", "a"), poptorch.Error, "'b' is in phase 0 but .* 'a', phase 1"),
        ],
        ids=["unknown block", "no IPU", "parity", "against the data flow"],
    )  # fmt: skip
    def test_places_are_checked_when_the_model_is_compiled(
        self, ipus: tuple[int | None, ...], strategy: Any, error: type[Exception], words: str
    ) -> None:
        model = Phased(*ipus)
        with pytest.raises(error, match=words):
            self.run(model, strategy())
        assert not poptorch.isRunningOnIpu()
        again = SerialPhasedExecution("a", Stage("b").ipu(0))
        torch.testing.assert_close(self.run(model, again), model(X).detach())

    def test_the_ipus_of_a_phase_stand_in_for_those_of_blocks(self) -> None:
        strategy = SerialPhasedExecution("a", "b")
        strategy.phase(0).ipus(0)
        strategy.phase(1).ipus(1)
        model = Phased(None, None)
        torch.testing.assert_close(self.run(model, strategy), model(X).detach())

    def test_ops_before_the_first_block_are_in_phase_0(self) -> None:
        class Before(Phased):
            def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
                return super().forward(x * 2, y)

        model = Before(0, 0)
        torch.testing.assert_close(self.run(model, SerialPhasedExecution("a", "b")), model(X).detach())

    def test_inference_without_accumulation_suggests_no_pipeline(self) -> None:
        options = quiet().setExecutionStrategy(SerialPhasedExecution("a", "b"))
        options.Training.gradientAccumulation(2)
        with pytest.raises(poptorch.Error, match="gradientAccumulation to 1") as refusal:
            poptorch.inferenceModel(Phased(), options)
        assert "pipeline" not in refusal.value.message


class TestPerformanceModel:
    def options(self, strategy: Any) -> poptorch.Options:
        return quiet().setExecutionStrategy(strategy).outputMode(poptorch.OutputMode.All).logCycleCount(True)

    def cycles(self, options: poptorch.Options, ipus: tuple[int, int] = (0, 0)) -> int:
        model = Phased(*ipus)
        executor = poptorch.trainingModel(model, options, sgd(model))
        executor(X, Y)
        cycles: int = executor.cycleCount()
        return cycles

    @pytest.mark.parametrize("name", ["serial", "serial on two IPUs", "one phase of two stages", "parallel"])
    def test_tensors_off_chip_cost_time(self, name: str) -> None:
        ipus, strategy = STRATEGIES[name]
        phased = self.cycles(self.options(strategy()), ipus)
        sharded = self.cycles(self.options(poptorch.ShardedExecution("a", "b")), ipus)
        assert phased > sharded

    @pytest.mark.parametrize("name", ["serial", "serial on two IPUs", "one phase of two stages", "parallel"])
    def test_tensors_kept_on_chip_cost_what_shards_cost(self, name: str) -> None:
        ipus, strategy = STRATEGIES[name]
        options = self.options(strategy())
        on_chip = poptorch.TensorLocationSettings().useOnChipStorage(True)
        for place in ("Activation", "Weight", "Optimizer", "Accumulator"):
            getattr(options.TensorLocations, f"set{place}Location")(on_chip)
        assert self.cycles(options, ipus) == self.cycles(self.options(poptorch.ShardedExecution("a", "b")), ipus)
