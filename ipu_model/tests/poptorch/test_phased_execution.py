"""Phased execution: the numbers of the same model in plain PyTorch, and section 5 of the execution reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executor_support import Module, X, Y, inference, quiet, training
from torch import Tensor, nn

import poptorch
from poptorch import Liveness, ParallelPhasedExecution, Phase, SerialPhasedExecution, Stage


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


def places(strategy: Any, *ipus: int | None, before: float = 1.0) -> None:
    """Run a model, whose ops may begin before the first block, and compare it with plain PyTorch."""
    model = phased(*ipus)
    whole = Module(lambda m, x: m.inner(x * before), inner=model)
    found = inference(whole, quiet(setExecutionStrategy=strategy))(X)
    torch.testing.assert_close(found, model(X * before).detach())


def test_the_ipus_of_a_phase_or_stage_stand_in_for_those_of_blocks() -> None:
    strategy = SerialPhasedExecution("a", "b")
    strategy.phase(0).ipus(0)
    strategy.phase(1).ipus(1)
    places(strategy, None, None)
    places(SerialPhasedExecution("a", Stage("b").ipu(0)), 0, 2)


def test_ops_before_the_first_block_are_in_phase_0() -> None:
    places(SerialPhasedExecution("a", "b"), 0, 0, before=2.0)


@pytest.mark.parametrize(
    ("ipus", "strategy", "error", "words"),
    [
        ((0, 0), lambda: SerialPhasedExecution("a"), AssertionError, "Unknown Block 'b'"),
        ((0, 2), lambda: ParallelPhasedExecution("a", "b"), poptorch.Error, "odd phases on odd IPUs"),
        ((0, 0), lambda: SerialPhasedExecution("b", "a"), poptorch.Error, "'b' is in phase 0 but .* 'a', phase 1"),
    ],
)
def test_places_are_checked_when_a_model_is_compiled(ipus: Any, strategy: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        places(strategy(), *ipus)
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
