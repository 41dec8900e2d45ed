"""Train a convolutional network on photographs with PopTorch, on one IPU: a program as one finds them.

``python -m ipu_course.lessons.capstone.slow_program`` trains a tiny network on random images, for real.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import poptorch
from ipu_course.models import WithLoss

BATCH_SIZE, ACCUMULATION = 20, 10
UPDATES = 16


def make_options() -> poptorch.Options:
    """Return the options: an update after ten micro-batches."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    return options


def make_loader(options: poptorch.Options, data: Dataset[tuple[Tensor, ...]]) -> poptorch.DataLoader:
    """Return a loader of the photographs, which loads when it is asked."""
    return poptorch.DataLoader(options, data, batch_size=BATCH_SIZE)


def photographs(count: int = UPDATES * ACCUMULATION * BATCH_SIZE) -> TensorDataset:
    """Return random images [N, 3, 4, 4] and labels [N], which stand for photographs."""
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.rand(count, 3, 4, 4, generator=generator), torch.randint(10, (count,), generator=generator)
    )


def network() -> nn.Module:
    """Return a tiny network with its loss."""
    torch.manual_seed(6)
    return WithLoss(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 10)))


def train(options: poptorch.Options, loader: poptorch.DataLoader) -> list[Tensor]:
    """Train the tiny network for an epoch and return its weights."""
    model = network()
    quiet = options.clone().showCompilationProgressBar(False)  # the loader has frozen the options
    training = poptorch.trainingModel(model, quiet, poptorch.optim.SGD(model.parameters(), lr=0.1))
    for images, labels in loader:
        training(images, labels)
    training.copyWeightsToHost()
    training.destroy()
    return [each.detach().clone() for each in model.parameters()]


def main() -> None:
    """Train, and print the sum of all weights."""
    options = make_options()
    weights = train(options, make_loader(options, photographs()))
    print(f"sum of the weights: {sum(float(each.sum()) for each in weights):.3f}")


if __name__ == "__main__":
    main()
