"""`trainingModel` and `inferenceModel`."""

from __future__ import annotations

import torch
from torch import nn

from poptorch import optim
from poptorch._backend.wrapping import refuse_wrapped
from poptorch._impl import createPoptorchError
from poptorch._poplar_executor import PoplarExecutor
from poptorch.options import Options


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a module so that every call trains it: forward, backward and weight updates on the device.

    `options` are frozen; `optimizer=None` means `poptorch.optim.SGD(model.parameters(), lr=0.01)`.

    Raises:
        RuntimeError: the module is wrapped for training already.
        Error: `model` or `options` of another type.
    """
    module = user_module(model)
    refuse_wrapped(module)
    if optimizer is None:
        optimizer = optim.SGD(module.parameters(), lr=0.01)
    return PoplarExecutor(module, options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module for forward passes on the device; it follows a training model of the same weights.

    `options` are frozen.

    Raises:
        Error: `model` or `options` of another type, or gradient accumulation in the options.
    """
    return PoplarExecutor(user_module(model), options, training=False)


def user_module(model: nn.Module | PoplarExecutor) -> nn.Module:
    """Return the module to wrap: that of an executor, or the module itself.

    Raises:
        Error: anything else, or a module that is or holds a scripted one.
    """
    module = model.model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, nn.Module):
        raise createPoptorchError(
            f"Invalid type: 'model' is of type {type(module)}, expected torch.nn.Module. Wrap a function in "
            "a module whose forward calls it."
        )
    for name, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            inside = f" ('{name}' is one)" if name else ""
            raise createPoptorchError(
                f"A scripted module cannot be traced again{inside}: wrap the module it was made from."
            )
    return module
