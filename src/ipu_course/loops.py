"""The training and test loops of the lessons' small networks: models that give (logits, loss)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    import poptorch


class EpochResult(NamedTuple):
    """Mean loss of an epoch, and the percentage of right predictions, both over what the model returned."""

    loss: float
    accuracy: float


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the percentage of predictions [N, classes] whose largest entry is the label, exact in double precision.

    Of more labels than predictions the last ones count: a model may return only its last results.
    """
    labels = labels[-len(predictions) :]
    return int((predictions.argmax(1) == labels).sum()) / len(labels) * 100.0


def train_epoch(training_model: poptorch.PoplarExecutor, batches: Iterable[tuple[Tensor, Tensor]]) -> EpochResult:
    """Train on all ``batches``, each one call's images and labels. Raises ``ValueError`` when there are none."""
    losses, accuracies = [], []
    for images, labels in batches:
        logits, loss = training_model(images, labels)
        losses.append(loss.float().mean().item())
        accuracies.append(accuracy(logits, labels))
    if not losses:
        raise ValueError("there was no batch to train on: one call takes more images than the data set has")
    return EpochResult(sum(losses) / len(losses), sum(accuracies) / len(accuracies))


def test_accuracy(inference_model: poptorch.PoplarExecutor, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the percentage of right predictions over all ``batches``. Raises ``ValueError`` when there are none."""
    calls = [accuracy(inference_model(images), labels) for images, labels in batches]
    if not calls:
        raise ValueError("there was no batch to test on: one call takes more images than the data set has")
    return sum(calls) / len(calls)
