"""Mistakes of a program: the error's class, words to recognise, what works instead, a usable model.

Each case says which rule it breaks (`words`) and the nearest thing that works (`advice`), and is followed by
the corrected program on the same module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import quiet
from loading_datasets import Fails, Numbers
from torch import Tensor, nn

import poptorch

X, CLASS = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 4


class Body(nn.Module):
    """Two layers in two named blocks, with what the loss is made of left to `mistake`."""

    def __init__(self, mistake: Callable[[Tensor, Tensor], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 4)
        self.mistake = mistake

    def forward(self, x: Tensor, y: Tensor) -> Any:
        with poptorch.Block("front"):
            h = torch.relu(self.a(x))
        with poptorch.Block("back"):
            out = self.b(h)
            if self.mistake is not None:
                return self.mistake(out, y)
            return out, F.cross_entropy(out, y)


def options(*stages: str, accumulation: int = 4, **others: Any) -> poptorch.Options:
    made = quiet().setExecutionStrategy(poptorch.PipelinedExecution(*(stages or ("front", "back"))))
    made.outputMode(poptorch.OutputMode.All)
    made.Training.gradientAccumulation(accumulation)
    for name, value in others.items():
        getattr(made, name)(value)
    return made


@dataclass
class Mistake:
    error: type[Exception]
    words: str
    advice: str
    wrong: poptorch.Options
    inputs: tuple[Any, ...] = (X, CLASS)
    loss: Callable[[Tensor, Tensor], Any] | None = None


MISTAKES = {
    "accumulation below 2 N - 1": Mistake(
        poptorch.Error,
        r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(3\)",
        "ShardedExecution", options(accumulation=2),
    ),
    "a block that no stage lists": Mistake(
        AssertionError, "Unknown Block 'back'", "lists 'front', 'rear'", options("front", "rear")
    ),
    "a batch that cannot be divided": Mistake(
        AssertionError, "Invalid batch dimension", "Nearest multiples: 4 and 8", options(), (X[:7], CLASS[:7])
    ),
    "two losses": Mistake(
        poptorch.Error, "Multiple independent losses found", "poptorch.identity_loss", options(),
        loss=lambda out, y: (F.cross_entropy(out, y), F.l1_loss(out, out * 0)),
    ),
    "no loss": Mistake(
        poptorch.Error, "Couldn't find a loss", "poptorch.identity_loss", options(), loss=lambda out, y: out
    ),
    "an element type that the device lacks": Mistake(
        poptorch.Error, "Unsupported input type torch.complex64", "real and imaginary parts separately", options(),
        (X.to(torch.complex64), CLASS),
    ),
    "a branch on data": Mistake(
        poptorch.Error, "branches on data", "torch.where", options(),
        loss=lambda out, y: F.cross_entropy(out, y) if out.sum() > 0 else F.cross_entropy(-out, y),
    ),
    "a shape that depends on data": Mistake(
        poptorch.Error, "shape of a result depends on data", "mask", options(),
        loss=lambda out, y: F.cross_entropy(out[y > 1], y[y > 1]),
    ),
    "a missing argument": Mistake(
        poptorch.Error, "Mandatory parameter y missing", "forward takes (x: ", options(), (X,)
    ),
    "an op outside the blocks": Mistake(
        poptorch.Error, "No active Block", "entering the last block again", options(),
        loss=lambda out, y: _after_a_block(out, y),
    ),
    "a reduction that does not exist": Mistake(
        AssertionError, "Unsupported reduction type", "'sum', 'mean' or 'none'", options(),
        loss=lambda out, y: poptorch.identity_loss(out, "average"),
    ),
    "too many IPUs": Mistake(
        poptorch.Error, r"Too many IPUs requested \(256\)", "fewer replicas",
        options(replicationFactor=128, accumulation=3), (torch.ones(384, 3), torch.zeros(384).long()),
    ),
    "an offline target": Mistake(
        AssertionError, "run a model on an offline device", "compile", options().useOfflineIpuTarget()
    ),
}  # fmt: skip


def _after_a_block(out: Tensor, y: Tensor) -> Tensor:
    with poptorch.Block("back"):
        out = out * 2
    return F.cross_entropy(out, y)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_way_out_and_leaves_the_model_usable(name: str) -> None:
    mistake = MISTAKES[name]
    model = Body(mistake.loss)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    executor = poptorch.trainingModel(model, mistake.wrong, poptorch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(mistake.error, match=mistake.words) as refusal:
        executor(*mistake.inputs)
    assert mistake.advice in str(refusal.value)
    assert not executor.isCompiled()
    assert not poptorch.isRunningOnIpu()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    executor.destroy()
    corrected = Body()
    corrected.a, corrected.b = model.a, model.b
    training = poptorch.trainingModel(corrected, options(), poptorch.optim.SGD(corrected.parameters(), lr=0.1))
    first, second = (training(X, CLASS)[1].mean().item() for _ in range(2))
    assert second < first
    assert not torch.equal(model.a.weight, before["a.weight"])


def test_changing_options_that_a_model_relies_on() -> None:
    frozen = options()
    poptorch.trainingModel(Body(), frozen)
    for change in (
        lambda: frozen.deviceIterations(2), lambda: frozen.Training.gradientAccumulation(8),
        lambda: frozen._Popart.set("autoRecomputation", 1),
        lambda: frozen.setExecutionStrategy(poptorch.ShardedExecution()),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=r"Can't modify frozen Options.*options.clone\(\)"):
            change()
    assert frozen.clone().deviceIterations(2).device_iterations == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, y.int()), "Data type mismatch for y: expected torch.int64 but got torch.int32"),
        (
            lambda x, y: (x.half(), y),
            "Data type mismatch for x: expected torch.float32 but got torch.float16",
        ),
        (lambda x, y: (x[:4], y), "Shape mismatch for x"),
        (lambda x, y: (x, None), "Type mismatch for y"),
    ],
)
def test_a_call_that_differs_from_the_compiled_one(change: Any, words: str) -> None:
    model = Body()
    executor = poptorch.trainingModel(model, options())
    executor(X, CLASS)
    with pytest.raises(poptorch.Error, match=words) as refusal:
        executor(*change(X, CLASS))
    assert "destroy()" in refusal.value.message
    assert executor(X, CLASS)[0].shape == (8, 4)


@pytest.mark.parametrize(
    ("set_option", "error", "words"),
    [
        (lambda o: o.deviceIterations("4"), AssertionError, "Unexpected type"),
        (lambda o: o.autoRoundNumIPUs(1), AssertionError, "Unexpected type"),
        (lambda o: o.outputMode(2), AssertionError, "poptorch.OutputMode"),
        (lambda o: o.outputMode(poptorch.OutputMode.EveryN), AssertionError, "output_return_period"),
        (lambda o: o.Precision.setPartialsType(torch.int32), ValueError, "float"),
        (lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction),
         ValueError, "Mean"),
        (lambda o: o.setExecutionStrategy("pipelined"), AssertionError, "PipelinedExecution"),
        (lambda o: o.randomSeed("1"), AssertionError, "int"),
    ],
)  # fmt: skip
def test_option_values_of_a_wrong_type(set_option: Any, error: type[Exception], words: str) -> None:
    made = quiet()
    with pytest.raises(error, match=words):
        set_option(made)
    assert repr(made) == repr(quiet())


class TestLoading:
    def test_a_data_set_that_raises_in_this_process(self) -> None:
        loader = poptorch.DataLoader(quiet().deviceIterations(2), Fails(8, bad=5), batch_size=1)
        with pytest.raises(ValueError, match="sample 5 is bad"):
            list(loader)

    def test_a_data_set_that_raises_in_the_loaders_process(self) -> None:
        options = quiet().deviceIterations(2)
        loader = poptorch.DataLoader(options, Fails(8, bad=5), batch_size=1, mode=poptorch.DataLoaderMode.Async)
        with pytest.raises(AssertionError, match=r"(?s)sample 5 is bad.*An error occurred in the data fetcher"):
            list(loader)
        loader.terminate()

    @pytest.mark.parametrize("mode", [poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched])
    def test_a_data_set_smaller_than_one_call_needs(self, mode: poptorch.DataLoaderMode) -> None:
        with pytest.raises(poptorch.Error, match=r"(?s)The Dataset is empty.*fewer.*worker thread failed to start"):
            poptorch.DataLoader(quiet().deviceIterations(4), Numbers(3), batch_size=1, mode=mode)

    def test_in_sync_mode_such_a_loader_has_no_items(self) -> None:
        """As a torch loader with drop_last=True (data reference, 2.5)."""
        loader = poptorch.DataLoader(quiet().deviceIterations(4), Numbers(3), batch_size=1)
        assert len(loader) == 0
        assert list(loader) == []

    def test_options_of_another_type(self) -> None:
        with pytest.raises(AssertionError, match=r"poptorch.Options"):
            poptorch.DataLoader({}, Numbers(3))
