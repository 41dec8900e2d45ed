"""The same training in large batches and with accumulation: how far apart do the weights end?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.lessons.gradient_accumulation.exercises import one_large_batch
from ipu_course.models import SmallNetwork, WithLoss

if TYPE_CHECKING:
    from ipu_course.datasets.colour_images import ColourImages

UPDATE_IMAGES = 64
# Where SmallNetwork(width=8) normalises, and how many channels there are.
NORMALISES = ((1, 8), (5, 16), (9, 32))
Training = Callable[[nn.Module, torch.optim.Optimizer], None]
"""Trains a network with one of PopTorch's optimisers, in place, on the images of the large batches."""


def percent_apart(
    train: Training, shapes: ColourImages, optimiser: str, rate: float, large_rate: float, batch_norm: bool
) -> float:
    """Return how far ``train`` ends from large batches in plain PyTorch, as a percentage of the way of their weights.

    ``optimiser`` is a name that both libraries have. ``train`` gets it with the learning rate ``rate``, the large
    batches of 64 images with ``large_rate``. The networks start equal and normalise with GroupNorm or BatchNorm.
    """
    small, large = _first_network(batch_norm), _first_network(batch_norm)
    before = _weights(large)
    train(small, getattr(poptorch.optim, optimiser)(small.parameters(), lr=rate))
    theirs = getattr(torch.optim, optimiser)(large.parameters(), lr=large_rate)
    for images, labels in zip(shapes.images.split(UPDATE_IMAGES), shapes.labels.split(UPDATE_IMAGES)):
        one_large_batch(large, theirs, images, labels)
    return 100 * float((_weights(small) - _weights(large)).norm() / (_weights(large) - before).norm())


def _first_network(batch_norm: bool) -> WithLoss:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = SmallNetwork(width=8)
    if batch_norm:
        for place, channels in NORMALISES:
            network.features[place] = nn.BatchNorm2d(channels)
    return WithLoss(network)


def _weights(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()
