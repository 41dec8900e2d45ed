"""The check of a ported training loop: it runs the learner's wrapper and loop beside plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course.exercises import as_number

LEARNING_RATE = 0.05
BATCHES, IMAGES = 6, 8
Batches = List[Tuple[Tensor, Tensor]]


def port_hint(with_loss: Any, train_on_ipu: Any) -> str | None:
    """Return a hint unless the wrapper gives logits and loss, and the loop trains as plain PyTorch does."""
    return _wrapper_hint(with_loss) or _loop_hint(train_on_ipu)


def train_in_pytorch(model: nn.Module, batches: Batches) -> list[float]:
    """Return the losses of the loop that the learner ports."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for images, labels in batches:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def _model_and_batches() -> tuple[nn.Module, Batches]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 16), nn.ReLU(), nn.Linear(16, 10))
        labels = torch.arange(BATCHES * IMAGES) % 10
        images = torch.randn(BATCHES * IMAGES, 3, 4, 4) + labels.view(-1, 1, 1, 1) / 5
    return model, list(zip(images.split(IMAGES), labels.split(IMAGES)))


def _wrapper_hint(with_loss: Any) -> str | None:
    if not (isinstance(with_loss, type) and issubclass(with_loss, nn.Module)):
        return "WithLoss should be a class that derives from nn.Module and takes the model."
    model, batches = _model_and_batches()
    images, labels = batches[0]
    results = with_loss(model)(images, labels)
    if results is None:
        return "forward of WithLoss returns nothing. Return the logits and the loss."
    if not isinstance(results, (tuple, list)) or len(results) != 2:
        return (
            "forward of WithLoss should return two tensors, (logits, loss): the loss to train, the logits to look at."
        )
    loss = next((each for each in results if isinstance(each, Tensor) and each.numel() == 1), None)
    if loss is None:
        return "forward of WithLoss returns no single number as its loss. Take the mean over the batch."
    return _loss_hint(loss, model(images), labels)


def _loss_hint(loss: Tensor, logits: Tensor, labels: Tensor) -> str | None:
    known = {
        F.cross_entropy(logits, labels): None,
        F.cross_entropy(logits, labels, reduction="sum"): (
            "Your loss is the sum over the batch; PyTorch's loop takes the mean, which is cross_entropy's default."
        ),
        F.cross_entropy(logits.softmax(1), labels): (
            "cross_entropy computes the softmax itself: give it the logits, not probabilities."
        ),
    }
    for value, hint in known.items():
        if torch.allclose(loss.reshape(()).float(), value, rtol=1e-4):
            return hint
    return "The loss of WithLoss is not the cross-entropy of the model's logits and the labels."


def _loop_hint(train_on_ipu: Any) -> str | None:
    if not callable(train_on_ipu):
        return f"train_on_ipu should be a function of model, batches and options; you wrote {train_on_ipu!r}."
    model, batches = _model_and_batches()
    plain = copy.deepcopy(model)
    before = _weights(model)
    wanted = train_in_pytorch(plain, batches)
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    losses = train_on_ipu(model, batches, options)
    hint = _losses_hint(losses, wanted) or _options_hint(options) or _values_hint(losses, wanted)
    return hint or _weights_hint(before, _weights(model), _weights(plain))


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def _losses_hint(losses: Any, wanted: list[float]) -> str | None:
    if losses is None:
        return "train_on_ipu returns nothing. Return the list of losses."
    if not isinstance(losses, (list, tuple)) or any(as_number(loss) is None for loss in losses):
        return "train_on_ipu should return a list with one number for each batch: append loss.item()."
    if len(losses) != len(wanted):
        return f"train_on_ipu returned {len(losses)} losses for {len(wanted)} batches; one call trains one batch."
    return None


def _options_hint(options: poptorch.Options) -> str | None:
    """Options that a model was made with are frozen, so that a setting that still works shows unused ones."""
    try:
        options.deviceIterations(1)
    except (AttributeError, poptorch.Error):
        return None
    return "No model was made with the options given. Call poptorch.trainingModel(network, options, optimiser)."


def _values_hint(losses: Any, wanted: list[float]) -> str | None:
    found = torch.tensor([as_number(loss) for loss in losses])
    if torch.allclose(found, torch.tensor(wanted), rtol=1e-3, atol=1e-4):
        return None
    if not torch.isclose(found[0], torch.tensor(wanted[0]), rtol=1e-3):
        return (
            f"Even the first loss is {found[0]:.4f}, but plain PyTorch has {wanted[0]:.4f}. Train the model that the "
            "function is given."
        )
    return (
        "The first loss equals that of plain PyTorch, but the later ones differ: the weights are updated differently. "
        f"Use trainingModel, and SGD with lr={LEARNING_RATE} over the network's parameters."
    )


def _weights_hint(before: Tensor, after: Tensor, wanted: Tensor) -> str | None:
    if torch.allclose(after, wanted, rtol=1e-3, atol=1e-4):
        return None
    if torch.equal(after, before):
        return (
            "The losses are right, but the model has its old weights: the trained ones were lost with the device. "
            "Call training_model.detachFromDevice() before you return."
        )
    return "The losses are right, but the weights at the end are not those of plain PyTorch."
