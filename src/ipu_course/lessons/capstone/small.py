"""Train the small transformer for real, as a plan has it, and with plain PyTorch beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

import torch

import poptorch
from ipu_course.lessons.capstone.budget import micro_batch_of
from ipu_course.lessons.capstone.transformer import SMALL, Transformer, sequences

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.budget import WritePlan

RATE, SEED = 0.003, 7
NEAR = 1e-3


@dataclass(frozen=True)
class SmallRun:
    """The mean loss of every weight update, as the plan trains and as plain PyTorch does."""

    planned: tuple[float, ...]
    plain: tuple[float, ...]

    @property
    def furthest(self) -> float:
        """The largest difference between the two losses of an update."""
        return max(abs(one - other) for one, other in zip(self.planned, self.plain))


def train_small(plan: WritePlan, updates: int = 12) -> SmallRun:
    """Train the small transformer for some weight updates, as a plan has it and with plain PyTorch.

    Both begin with the same weights and see the same sequences; the optimiser is AdamW.
    """
    batches = [sequences(SMALL, SMALL.global_batch, seed) for seed in range(updates)]
    return SmallRun(tuple(_planned(plan, batches)), tuple(_plain(batches)))


def _network() -> Transformer:
    torch.manual_seed(SEED)
    return Transformer(SMALL)


def _planned(plan: WritePlan, batches: Sequence[tuple[torch.Tensor, ...]]) -> list[float]:
    model = _network()
    options = plan(model, SMALL.global_batch)
    micro_batch_of(options, SMALL)
    options.showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All)
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=RATE)
    training = poptorch.trainingModel(model, options, optimiser)
    losses = [float(training(*batch).float().mean()) for batch in batches]
    training.destroy()
    return losses


def _plain(batches: Sequence[tuple[torch.Tensor, ...]]) -> list[float]:
    model = _network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def show_small(run: SmallRun) -> None:
    """Print how far the loss fell, and whether plain PyTorch's is the same."""
    fell = run.planned[-1] < run.planned[0] / 2
    print(f"loss at first: {run.planned[0]:.1f}; after {len(run.planned)} updates: {run.planned[-1]:.1f}")
    print(f"less than half of what it was: {'yes' if fell else 'no'}")
    print(f"the same losses as plain PyTorch: {'yes' if run.furthest < NEAR else 'no'}")
