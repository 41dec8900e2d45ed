"""Training through PopTorch gives the weights, outputs and statistics of plain PyTorch doing the same arithmetic."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_pytorch import Results, train
from torch import Tensor, nn

import poptorch
from ipu_model.capture.torch_private import mkldnn_disabled


class WithLoss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.body(x)
        return out, F.cross_entropy(out, y)


class LastStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), (6,)),
    "cnn with batch norm": (small_cnn, (1, 8, 8)),
    "lstm": (LastStep, (7, 4)),
    "transformer block": (Encoder, (7, 8)),
}
# Some gradients are zero in exact arithmetic (a bias in front of batch norm, the bias of attention keys). Adam divides
# such rounding noise by its own size; a larger eps keeps it noise, so that weights can be compared.
EPS = 1e-2
OPTIMISERS = {
    "sgd": (lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)),
    "adamw": (lambda p: poptorch.optim.AdamW(p, lr=0.01, eps=EPS),
              lambda p: torch.optim.AdamW(p, lr=0.01, eps=EPS)),
    "torch adam": (lambda p: torch.optim.Adam(p, lr=0.01, eps=EPS),
                   lambda p: torch.optim.Adam(p, lr=0.01, eps=EPS)),
}  # fmt: skip


def expected_output(results: Results, mode: poptorch.OutputMode, period: int, position: int) -> Tensor:
    return {
        poptorch.OutputMode.All: lambda: results.all(position),
        poptorch.OutputMode.Final: lambda: results.final(position),
        poptorch.OutputMode.Sum: lambda: results.total(position),
        poptorch.OutputMode.EveryN: lambda: results.every(period, position),
    }[mode]()


def options_for(d: int, a: int, r: int, mode: poptorch.OutputMode, mean: bool = True) -> poptorch.Options:
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).showCompilationProgressBar(False)
    options.outputMode(mode, d if mode == poptorch.OutputMode.EveryN else None)
    options.Training.gradientAccumulation(a)
    reduction = poptorch.ReductionType.Mean if mean else poptorch.ReductionType.Sum
    options.Training.accumulationAndReplicationReductionType(reduction)
    return options


def assert_same_state(model: nn.Module, expected: nn.Module, tolerance: float = 2e-5) -> None:
    reference = expected.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(value, reference[name], rtol=tolerance, atol=tolerance), name


COUNTS = st.integers(1, 3)
MODES = st.sampled_from([m for m in poptorch.OutputMode if m != poptorch.OutputMode.Default])


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None)
@given(d=COUNTS, a=COUNTS, r=COUNTS, mode=MODES, mean=st.booleans(),
       optimiser=st.sampled_from(sorted(OPTIMISERS)), seed=st.integers(0, 2**20))  # fmt: skip
def test_several_calls_equal_plain_pytorch(name, d, a, r, mode, mean, optimiser, seed) -> None:
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    model = WithLoss(make())
    plain = copy.deepcopy(model)
    ours, theirs = OPTIMISERS[optimiser]
    training = poptorch.trainingModel(model, options_for(d, a, r, mode, mean), ours(model.parameters()))
    plain_optimiser = theirs(plain.parameters())
    replicas = None
    for _ in range(2):
        x, y = torch.randn(d * a * r * 3, *shape), torch.randint(0, 5, (d * a * r * 3,))
        output, loss = training(x, y)
        with mkldnn_disabled() if name == "lstm" else torch.enable_grad():
            results, replicas = train(plain, plain_optimiser, x, y, iterations=d, accumulation=a, replicas=r,
                                      mean=mean, replica_models=replicas)  # fmt: skip
        period = d
        torch.testing.assert_close(output, expected_output(results, mode, period, 0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(loss, expected_output(results, mode, period, 1), rtol=1e-4, atol=1e-4)
    assert_same_state(model, plain)


def test_resnet18_after_three_steps_equals_plain_pytorch() -> None:
    torch.manual_seed(0)
    model = WithLoss(torchvision.models.resnet18(num_classes=5))
    plain = copy.deepcopy(model)
    options = options_for(3, 2, 1, poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    x, y = torch.randn(24, 3, 32, 32), torch.randint(0, 5, (24,))
    output, loss = training(x, y)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    results, _ = train(plain, optimiser, x, y, iterations=3, accumulation=2, replicas=1)
    torch.testing.assert_close(output, results.all(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, results.all(1), rtol=1e-4, atol=1e-4)
    assert_same_state(model, plain)


def test_one_step_is_bit_equal_where_the_arithmetic_is_the_same() -> None:
    torch.manual_seed(0)
    model = WithLoss(small_cnn())
    plain = copy.deepcopy(model)
    training = poptorch.trainingModel(model, options_for(1, 1, 1, poptorch.OutputMode.Final),
                                      poptorch.optim.SGD(model.parameters(), lr=0.5))  # fmt: skip
    x, y = torch.randn(4, 1, 8, 8), torch.randint(0, 5, (4,))
    output, loss = training(x, y)
    results, _ = train(
        plain, torch.optim.SGD(plain.parameters(), lr=0.5), x, y, iterations=1, accumulation=1, replicas=1
    )
    assert torch.equal(output, results.final(0))
    assert torch.equal(loss, results.final(1))
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)
