"""A training step of ResNet-18 (16 images of 32x32), of recurrent and of the MNIST networks, against plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import poptorch
from measurements.timing import Row, elapsed, medians

Step = Callable[[], object]


class WithLoss(nn.Module):
    """A classifier that returns its cross entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch."""
        return F.cross_entropy(self.body(x), y)


def rows(rounds: int) -> list[Row]:
    """Measure the steps."""
    torch.manual_seed(0)
    body = torchvision.models.resnet18()
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 1000, (16,))
    steps = {
        "eager": _eager(body, x, y),
        "fp32": _replayed(body, x, y),
        "fp16": _replayed(copy.deepcopy(body).half(), x.half(), y),
    }
    took = medians(steps, rounds)
    native = elapsed(_eager(copy.deepcopy(body).half(), x.half(), y))
    mnist = _mnist(rounds)
    return [
        Row.ratio("ResNet-18 fp32 step: replay / plain PyTorch eager", took["fp32"] / took["eager"], at_most=1.05),
        Row.ratio("ResNet-18 fp16 step / fp32 step, both replayed", took["fp16"] / took["fp32"], at_most=1.25),
        Row("ResNet-18 fp16 step: PyTorch's own CPU half / replay", f"{native / took['fp16']:.0f}x",
            "budget at least 40x", native / took["fp16"] >= 40),
        Row.ratio("MNIST network, 10 x 10 micro-batches of 40: replay / eager",
                  mnist["replay"] / mnist["eager"], at_most=1.05),
        *_recurrent(rounds),
    ]  # fmt: skip


class _Last(nn.Module):
    """The output of the last step, of a network with two layers."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU | nn.RNN]) -> None:
        super().__init__()
        self.network = kind(128, 128, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.network(x)[0][:, -1]
        return last


def _recurrent(rounds: int) -> list[Row]:
    """Measure 16 sequences of 50 steps; PyTorch runs a layer of an LSTM as one fused kernel."""
    found, x, y = [], torch.randn(16, 50, 128), torch.randint(0, 128, (16,))
    for kind, name in ((nn.LSTM, "LSTM, PyTorch's fused kernel"), (nn.GRU, "GRU"), (nn.RNN, "RNN")):
        body = _Last(kind)
        took = medians({"eager": _eager(body, x, y), "replay": _replayed(body, x, y)}, rounds)
        ratio = took["replay"] / took["eager"]
        found.append(Row.ratio(f"{name}, 2 layers, fp32 step: replay / eager", ratio, at_most=1.5))
    return found


def _eager(body: nn.Module, x: Tensor, y: Tensor) -> Step:
    model = WithLoss(copy.deepcopy(body))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = model(x, y)
        loss.backward()
        optimiser.step()
        return loss

    return step


def _replayed(body: nn.Module, x: Tensor, y: Tensor) -> Step:
    model = WithLoss(copy.deepcopy(body))
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    return lambda: training(x, y)


def _mnist(rounds: int) -> dict[str, float]:
    """Measure a call of the pipelining tutorial's size: 10 device iterations x 10 accumulations x 40 images."""
    from ipu_course.programs.mnist.model import Network

    network = WithLoss(Network())
    plain = copy.deepcopy(network)
    x, y = torch.randn(4000, 1, 28, 28), torch.randint(0, 10, (4000,))
    options = poptorch.Options().deviceIterations(10).showCompilationProgressBar(False)
    options.setExecutionStrategy(poptorch.PipelinedExecution("B1", "B2", "B3", "B4"))
    options.Training.gradientAccumulation(10)
    # The loss is computed after the last block has ended, which PopTorch refuses: enter it again.
    training = poptorch.trainingModel(_LossInLastBlock(network), options, poptorch.optim.AdamW(network.parameters()))
    optimiser = torch.optim.AdamW(plain.parameters())

    def eager() -> None:
        for images, labels in zip(x.split(400), y.split(400)):
            optimiser.zero_grad()
            for image, label in zip(images.split(40), labels.split(40)):
                (plain(image, label) / 10).backward()
            optimiser.step()

    return medians({"eager": eager, "replay": lambda: training(x, y)}, max(3, rounds // 5))


class _LossInLastBlock(nn.Module):
    def __init__(self, network: WithLoss) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.network.body(x)
        with poptorch.Block("B4"):
            return F.cross_entropy(out, y)
