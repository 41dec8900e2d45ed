"""The MNIST program's loops: what they count, what they print. The models here are plain functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipu_course.loops import accuracy
from ipu_course.programs.mnist.program import test as accuracy_on
from ipu_course.programs.mnist.program import train


def _predictions(*digits: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(digits), 10).float()


def test_accuracy_is_the_percentage_of_right_digits() -> None:
    assert accuracy(_predictions(1, 2, 3, 4), torch.tensor([1, 2, 3, 0])) == 75.0


def test_accuracy_is_exact_where_single_precision_would_round() -> None:
    # 1,481 of 2,000 are 74.05 %; as a mean in single precision they would be 74.0500012.
    labels = torch.zeros(2000, dtype=torch.int64)
    assert accuracy(_predictions(*[0] * 1481, *[1] * 519), labels) == pytest.approx(74.05, rel=1e-12)


def test_accuracy_compares_the_last_labels_when_fewer_predictions_come_back() -> None:
    # OutputMode.Final returns only the last micro-batch of a step.
    assert accuracy(_predictions(3, 4), torch.tensor([1, 2, 3, 4])) == 100.0


def test_training_shows_epochs_and_the_last_step_s_loss_and_accuracy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = iter(range(1, 5))

    def model(_: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = next(steps)
        return _predictions(*[0] * len(labels)), torch.tensor([step, step + 1.0])

    data: Any = [(torch.zeros(4), torch.tensor([0, 0, 0, 1])), (torch.zeros(4), torch.tensor([0, 1, 1, 1]))]
    executor: Any = model
    train(executor, data, epochs=2)
    # Losses of steps 2 and 4: the means of (2, 3) and (4, 5); one label of four is 0 in both.
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 1/2",
        "Loss:2.5000 | Accuracy:25.00%",
        "Epoch 2/2",
        "Loss:4.5000 | Accuracy:25.00%",
    ]


def test_the_test_accuracy_is_the_mean_over_steps() -> None:
    def model(images: torch.Tensor) -> torch.Tensor:
        return _predictions(*[0] * len(images))

    data: Any = [(torch.zeros(2), torch.tensor([0, 0])), (torch.zeros(2), torch.tensor([0, 1]))]
    executor: Any = model
    assert accuracy_on(executor, data) == 75.0
