"""The training and test loops of the MNIST program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

if TYPE_CHECKING:
    import poptorch


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Percentage of predictions [N, classes] whose largest entry is the label.

    Of more labels than predictions the last ones count: a model may return only its last results.
    """
    _, indices = torch.max(predictions, 1)
    labels = labels[-predictions.size()[0] :]
    return torch.sum(torch.eq(indices, labels)).item() / labels.size()[0] * 100.0


def train(training_model: poptorch.PoplarExecutor, training_data: poptorch.DataLoader, epochs: int) -> None:
    """Train for some epochs, showing loss and accuracy of every step."""
    for epoch in range(1, epochs + 1):
        print(f"Epoch {epoch}/{epochs}", flush=True)
        # disable=None: a bar only where there is a terminal to redraw it.
        bar = tqdm(training_data, total=len(training_data), disable=None)
        no_bar, progress = bar.disable, ""  # asked now: at its end every bar calls itself disabled
        for images, labels in bar:
            predictions, losses = training_model(images, labels)
            mean_loss = torch.mean(losses).item()
            progress = f"Loss:{mean_loss:0.4f} | Accuracy:{accuracy(predictions, labels):0.2f}%"
            bar.set_description(progress)
        if no_bar:
            print(progress, flush=True)


def test(inference_model: poptorch.PoplarExecutor, test_data: poptorch.DataLoader) -> float:
    """Mean accuracy over the steps of the test data, in per cent."""
    total = 0.0
    for images, labels in tqdm(test_data, total=len(test_data), disable=None):
        total += accuracy(inference_model(images), labels)
    return total / len(test_data)
