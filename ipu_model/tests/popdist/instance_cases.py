"""Training runs that are made three times: by one process, by several instances, and by plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

REPLICAS = 4
CALLS = 2
# A larger eps keeps the noise of gradients that are zero in exact arithmetic (a bias before batch norm) noise.
NUMBERS: Mapping[str, Mapping[str, float]] = {"SGD": {"lr": 0.05, "momentum": 0.9}, "Adam": {"lr": 0.01, "eps": 1e-2}}


class WithLoss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.body(x)
        return out, F.cross_entropy(out.float(), y)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 5))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5))


@dataclass(frozen=True)
class Case:
    """One run: model and optimiser with `more` arguments, D device iterations, A accumulation steps, kind of mean.

    PyTorch makes the `plain` ones too, clipping at the norm `more` names.
    """

    model: Callable[[], nn.Module] = small_mlp
    optimiser: str = "SGD"
    more: Mapping[str, Any] = field(default_factory=dict)
    plain: bool = False
    iterations: int = 1
    accumulation: int = 1
    mean: bool = True
    half: bool = False
    seed: int | None = None
    stochastic_rounding: bool = False
    automatic_loss_scaling: bool = False


CASES = {
    "cnn": Case(small_cnn, plain=True, accumulation=2),
    "adam, sum, device iterations": Case(optimiser="Adam", plain=True, iterations=2, accumulation=3, mean=False),
    "clipped": Case(more={"max_grad_norm": 0.05}, plain=True, accumulation=2),
    "half, loss scaling": Case(more={"loss_scaling": 128.0}, accumulation=2, half=True),
    "half, automatic loss scaling": Case(
        more={"loss_scaling": 2.0**14}, iterations=3, accumulation=2, half=True, automatic_loss_scaling=True
    ),
    "running mean": Case(
        optimiser="Adam", more={"accum_type": torch.float16, "loss_scaling": 8.0}, accumulation=3, half=True
    ),
    "dropout": Case(with_dropout, seed=7),
    "stochastic rounding": Case(half=True, stochastic_rounding=True),
}


def model_of(case: Case) -> WithLoss:
    torch.manual_seed(1)
    model = WithLoss(case.model())
    return model.half() if case.half else model


def optimiser_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    return getattr(poptorch.optim, case.optimiser)(model.parameters(), **NUMBERS[case.optimiser], **case.more)


def batches(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Return the whole run's batches, rows laid out as [D, A, replica, row of a micro-batch, ...]."""
    generator = torch.Generator().manual_seed(2)
    shape = (case.iterations, case.accumulation, REPLICAS, 2)
    found = [
        (torch.randn(*shape, 1, 8, 8, generator=generator), torch.randint(0, 5, shape, generator=generator))
        for _ in range(CALLS)
    ]
    return [(x.half(), y) for x, y in found] if case.half else found


def options_of(case: Case, options: poptorch.Options) -> poptorch.Options:
    options.deviceIterations(case.iterations).showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(case.accumulation)
    options.Training.setAutomaticLossScaling(case.automatic_loss_scaling)
    reduction = poptorch.ReductionType.Mean if case.mean else poptorch.ReductionType.Sum
    options.Training.accumulationAndReplicationReductionType(reduction)
    options.Precision.enableStochasticRounding(case.stochastic_rounding)
    if case.seed is not None:
        options.randomSeed(case.seed)
    return options


def train(case: Case, options: poptorch.Options, instance: int = 0, instances: int = 1) -> dict[str, Tensor]:
    """Train with the replicas of one instance; return its state dict, and all outputs as `outputs`."""
    model = model_of(case)
    training = poptorch.trainingModel(model, options_of(case, options), optimiser_of(case, model))
    local = REPLICAS // instances
    outputs = []
    for x, y in batches(case):
        mine = slice(instance * local, (instance + 1) * local)
        own_x, own_y = x[:, :, mine], y[:, :, mine]
        output, _ = training(own_x.reshape(-1, *x.shape[4:]), own_y.reshape(-1))
        outputs.append(output.reshape(*own_y.shape, -1))
    training.copyWeightsToHost()
    return {**{name: value.clone() for name, value in model.state_dict().items()}, "outputs": torch.stack(outputs)}


def train_plainly(case: Case) -> dict[str, Tensor]:
    """Train with plain PyTorch on the global batch: every micro-batch of every replica, one update per iteration."""
    model = model_of(case)
    optimiser = getattr(torch.optim, case.optimiser)(model.parameters(), **NUMBERS[case.optimiser])
    count = case.accumulation * REPLICAS if case.mean else 1
    for x, y in batches(case):
        for iteration in range(case.iterations):
            optimiser.zero_grad()
            for micro_x, micro_y in zip(x[iteration].flatten(0, 1), y[iteration].flatten(0, 1)):
                (model(micro_x, micro_y)[1] / count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), case.more.get("max_grad_norm", float("inf")))
            optimiser.step()
    return {name: value.detach() for name, value in model.named_parameters()}
