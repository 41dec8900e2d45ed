"""PopTorch options and optimiser of the training program."""

from __future__ import annotations

import torch
from torch import nn

import poptorch
from ipu_course.programs.train.settings import Settings


def training_options(settings: Settings) -> poptorch.Options:
    """Options for training, not yet frozen."""
    options = poptorch.Options()
    if settings.seed is not None:
        options.randomSeed(settings.seed)
    options.deviceIterations(settings.device_iterations)
    options.replicationFactor(settings.replicas)
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    return options


def make_optimiser(settings: Settings, module: nn.Module) -> torch.optim.Optimizer:
    """AdamW; with 16-bit weights its gradients are scaled, and all but the second moments kept in 16 bits."""
    if settings.precision != "16.16":
        return poptorch.optim.AdamW(module.parameters(), lr=settings.learning_rate)
    return poptorch.optim.AdamW(
        module.parameters(),
        lr=settings.learning_rate,
        loss_scaling=1000,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )
