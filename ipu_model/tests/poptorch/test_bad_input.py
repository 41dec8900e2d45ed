"""Mistakes of a program: the error's class, words to recognise, what works instead, a usable model.

Each case says which rule it breaks (`words`) and the nearest thing that works (`advice`), and is followed by
the corrected program on the same module.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import quiet
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
    made = quiet(accumulation=accumulation, outputMode=poptorch.OutputMode.All, **others)
    return made.setExecutionStrategy(poptorch.PipelinedExecution(*(stages or ("front", "back"))))


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


# Mistakes that PopTorch asserts, as expressions; the checks must not be Python's assert statements.
ASSERTED = [
    "inference(quiet().deviceIterations(2))(torch.ones(7, 3))",
    "inference()(ONE, ONE, ONE)",
    "inference()(ONE, unknown=ONE)",
    "inference()(ONE, input=ONE)",
    "inference().getTensorNames()",
    "inference()._debugGetPopartIR()",
    "inference().getAnchoredTensor('x')",
    "inference(anchored()).getAnchoredTensor('x')",
    "inference(quiet().useOfflineIpuTarget())(ONE)",
    "inference(quiet().enableExecutableCaching('/dev/null'))(ONE)",
    "poptorch.PoplarExecutor(nn.Linear(3, 3), quiet(), False, poptorch.optim.SGD([nn.Parameter(ONE)], lr=1.0))",
    "poptorch.trainingModel(nn.Linear(3, 3)).weight.replicaGrouping(1, 2, 3)",
    "poptorch.ipuHardwareVersion()",
    "quiet().deviceIterations('4')",
    "quiet().autoRoundNumIPUs(1)",
    "quiet().outputMode(poptorch.OutputMode.EveryN)",
    "quiet().setExecutionStrategy('pipelined')",
    "poptorch.identity_loss(ONE, 'average')",
    "poptorch.DataLoader({}, [ONE])",
    "inference(unlisted(), in_blocks)(ONE)",
]
PROGRAM = """
import json, sys, torch, poptorch
from torch import nn
ONE = torch.ones(1, 3)
def quiet(): return poptorch.Options().showCompilationProgressBar(False)
def anchored():
    options = quiet(); options.anchorTensor("x", "input"); return options
def unlisted(): return quiet().setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))
def in_blocks(x):
    with poptorch.Block("c"): return x + 1
class Runs(nn.Module):
    def __init__(self, function): super().__init__(); self.function = function
    def forward(self, input): return self.function(input)
def inference(options=None, function=torch.relu): return poptorch.inferenceModel(Runs(function), options or quiet())
said = {}
for expression in json.loads(sys.argv[1]):
    try: said[expression] = f"no error: {eval(expression)}"
    except Exception as error: said[expression] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def test_mistakes_are_told_alike_by_optimised_python() -> None:
    """`python -O` leaves assert statements out."""

    def said(*flags: str) -> dict[str, str]:
        command = [sys.executable, *flags, "-c", PROGRAM, json.dumps(ASSERTED)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found

    plain = said()
    assert said("-O") == plain
    assert [text for text in plain.values() if not text.startswith("AssertionError: ")] == []
