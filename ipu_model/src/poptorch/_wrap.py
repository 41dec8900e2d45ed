"""`trainingModel` and `inferenceModel`."""

from __future__ import annotations

import torch
from torch import nn

from poptorch import optim
from poptorch._executor import PoplarExecutor
from poptorch._wrapping import link_of
from poptorch.options import Options


def trainingModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Wrap a module so that every call trains it: forward, backward and weight updates on the device.

    `options` are frozen; `optimizer=None` means `poptorch.optim.SGD(model.parameters(), lr=0.01)`.

    Raises:
        RuntimeError: the module is wrapped for training already.
        Error: `options` of another type.
    """
    module = _user_module(model)
    if link_of(module) is not None:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on it first to wrap it again."
        )
    if optimizer is None:
        optimizer = optim.SGD(module.parameters(), lr=0.01)
    return PoplarExecutor(module, options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module for forward passes on the device; it follows a training model of the same weights.

    `options` are frozen.

    Raises:
        Error: `options` of another type, or with gradient accumulation.
    """
    return PoplarExecutor(_user_module(model), options, training=False)


def _user_module(model: nn.Module | PoplarExecutor) -> nn.Module:
    return model.model if isinstance(model, PoplarExecutor) else model
