"""A network that reads digits from two sensors with awkward units, and its training with poptorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator, Mapping, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course.datasets import mnist
from ipu_course.datasets.images import ImageDataset

LAYERS = ("upper", "lower", "mix", "head")
ROWS, WIDTH, HEIGHT = 12, 28, 28
UPPER_OUTPUTS, LOWER_OUTPUTS, MIXED = 5, 4, 32
MOST_COUNTS, MOST_VOLTS = 4095.0, 0.002
TASK_WEIGHT = 0.01
IMAGES, MICRO_BATCH, DEVICE_ITERATIONS, EPOCHS = 10_000, 100, 10, 10
LEARNING_RATE = 0.004
SEED = 1


class UnitLength(nn.Module):
    """Rows scaled to length 1, computed in float32 and returned in the type that came in: [N, K] to [N, K]."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        length: Tensor = wide.norm(dim=1, keepdim=True) + 0.001
        return (wide / length).to(x.dtype)


class TwoSensors(nn.Module):
    """Counts of the upper 12 rows [N, 336] and volts of the lower 16 rows [N, 448] to logits [N, 10].

    With labels [N] it gives (logits, mean cross-entropy [], what is minimised []). The first weights are the same
    every time: those of ``upper`` up to 1/2, those of ``lower`` from 16 to 32, so that it gives outputs of about 1.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.upper = nn.Linear(ROWS * WIDTH, UPPER_OUTPUTS)
            self.lower = nn.Linear((HEIGHT - ROWS) * WIDTH, LOWER_OUTPUTS)
            self.mix = nn.Linear(UPPER_OUTPUTS + LOWER_OUTPUTS, MIXED)
            self.head = nn.Linear(MIXED, 10)
            nn.init.uniform_(self.upper.weight, -0.5, 0.5)
            signs = torch.randint(0, 2, self.lower.weight.shape) * 2.0 - 1.0
            self.lower.weight.data = signs * torch.empty_like(signs).uniform_(16.0, 32.0)
        self.unit: nn.Module = UnitLength()

    def forward(self, counts: Tensor, volts: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        sensors = torch.cat([self.unit(self.upper(counts)), self.unit(self.lower(volts))], 1)
        logits: Tensor = self.head(F.relu(self.mix(sensors)))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.float(), labels)
        return logits, loss, poptorch.identity_loss(TASK_WEIGHT * loss, reduction="none")


class Readings(NamedTuple):
    """What the two sensors give for some digits, in the type that the network gets, and the labels."""

    counts: Tensor
    volts: Tensor
    labels: Tensor


@lru_cache(maxsize=None)
def readings(train: bool, dtype: torch.dtype) -> Readings:
    """Return the readings of all digits for training or for testing."""
    digits = _digits(train)
    brightness = digits.pixels.float() / 255
    counts = (brightness[:, :ROWS].flatten(1) * MOST_COUNTS).to(dtype)
    volts = (brightness[:, ROWS:].flatten(1) * MOST_VOLTS).to(dtype)
    return Readings(counts, volts, digits.labels)


@lru_cache(maxsize=None)
def _digits(train: bool) -> ImageDataset:
    return mnist(train=True, images=IMAGES) if train else mnist(train=False)


def calls(dtype: torch.dtype, epochs: int = EPOCHS) -> Iterator[Readings]:
    """Yield the readings for each call of a training model, in the same order every time."""
    given = readings(True, dtype)
    for epoch in range(epochs):
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(MICRO_BATCH * DEVICE_ITERATIONS):
            yield Readings(*(each[rows] for each in given))


def training_options() -> poptorch.Options:
    """Return the options of every training here: ten updates in a call, of which the last results come back."""
    options = poptorch.Options().deviceIterations(DEVICE_ITERATIONS).outputMode(poptorch.OutputMode.Final)
    return options.showCompilationProgressBar(False).randomSeed(1)


@dataclass(frozen=True)
class SensorTraining:
    """How a training went: losses of the calls, test accuracy in per cent, and what became of the layers' weights.

    ``moved`` is each layer's change of weights over the whole training, relative to the first weights (L2 norms);
    ``weight_bytes`` is what all parameters take.
    """

    losses: tuple[float, ...]
    accuracy: float
    moved: Mapping[str, float]
    weight_bytes: int

    @property
    def finite(self) -> bool:
        """Whether all losses are numbers."""
        return bool(torch.tensor(self.losses).isfinite().all())


def train(
    network: TwoSensors, dtype: torch.dtype, loss_scaling: float = 1.0, stochastic_rounding: bool = False
) -> SensorTraining:
    """Train ``network`` with AdamW on readings of type ``dtype`` for ten epochs, and test it."""
    first = weights_of(network)
    options = training_options()
    options.Precision.enableStochasticRounding(stochastic_rounding)
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, loss_scaling=loss_scaling)
    model = poptorch.trainingModel(network, options, optimizer)
    losses = tuple(model(*each)[1].item() for each in calls(dtype))
    model.destroy()
    last = weights_of(network)
    moved = {layer: float((last[layer] - first[layer]).norm() / first[layer].norm()) for layer in LAYERS}
    size = sum(each.numel() * each.element_size() for each in network.parameters())
    return SensorTraining(losses, _accuracy(network, dtype), moved, size)


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the layers' weights in float32."""
    return {layer: network.get_parameter(f"{layer}.weight").detach().float().clone() for layer in LAYERS}


def _accuracy(network: TwoSensors, dtype: torch.dtype) -> float:
    tests = readings(False, dtype)
    model = poptorch.inferenceModel(network.eval(), poptorch.Options().showCompilationProgressBar(False))
    right = model(tests.counts, tests.volts).float().argmax(1) == tests.labels
    model.destroy()
    network.train()
    return 100.0 * int(right.sum()) / len(right)
