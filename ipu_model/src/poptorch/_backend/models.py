"""The functions that create executors: `trainingModel`, `inferenceModel` and `load`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ipu_model.errors import Error
from ipu_model.front_ends import program_of_module
from ipu_model.stored import OtherVersion
from poptorch import _poptorch_data
from poptorch._backend.exported import unpickled
from poptorch._backend.own_copies import checked_module
from poptorch._backend.wrapping import refuse_wrapped
from poptorch._poplar_executor import PoplarExecutor
from poptorch.enums import ConnectionType
from poptorch.options import Options

if TYPE_CHECKING:
    from ipu_model.predict.program import Program


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a module so that every call trains it: forward, backward and weight updates on the device.

    `options` are frozen; `optimizer=None` means `poptorch.optim.SGD(model.parameters(), lr=0.01)`.

    Raises:
        RuntimeError: the module is already wrapped for training.
        Error: `model` or `options` of another type.
    """
    module = _user_module(model)
    refuse_wrapped(module)
    return PoplarExecutor(module, options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module for forward passes on the device; it follows a training model of the same weights.

    `options` are frozen.

    Raises:
        Error: `model` or `options` of another type, or gradient accumulation in the options.
    """
    return PoplarExecutor(_user_module(model), options, training=False)


def load(
    filename: str | os.PathLike[str],
    edit_opts_fn: Callable[[Options], Any] | None = None,
    *,
    weights_only: bool = True,
) -> PoplarExecutor:
    """Return the executor that `save` or `compileAndExport` wrote with its model: wrapped, compiled and attached.

    `edit_opts_fn(options)` may change the stored options before they are used, but not those that the program was
    compiled with. An offline target becomes `ConnectionType.Always`. The model's forward is traced, and must give the
    program that was saved.

    As with `torch.load`, a file is read without executing what it contains: the classes of the model must have been
    imported before, and other functions and classes in it must be allowed by `torch.serialization.add_safe_globals`.
    The author of the file still decides what the model computes, as far as its attributes determine it.
    **With `weights_only=False` anything in the file may run: use it for files that you trust only.**

    Raises:
        AssertionError: the file was written by another version, or without its model (`export_model=False`).
        Error: "Invalid file": truncated, corrupt, of other code, or with classes that are not allowed.
        OSError: the file cannot be read.
    """
    path = _poptorch_data.path_to_read(filename)
    executable = _of_this_version(path)
    assert executable.model is not None, (
        f"Invalid file {path}: it was saved with export_model=False, without the model. Create the model again, wrap "
        "it and call loadExecutable."
    )
    parts = unpickled(executable.model, path, weights_only=weights_only)
    with _poptorch_data.damage_named(path):
        options = _usable(parts["options"])
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    with _poptorch_data.damage_named(path):
        executor = (
            trainingModel(parts["model"], options, parts["optimizer"])
            if executable.training
            else inferenceModel(parts["model"], options)
        )
        executor._take_groupings(executable, path)
    executor._use(executable, path)
    return executor


def _of_this_version(path: Path) -> _poptorch_data.Executable:
    """Read a file; raise PopTorch's AssertionError if another version wrote it."""
    try:
        return _poptorch_data.read(path)
    except Error as error:
        if isinstance(error.__cause__, OtherVersion):
            raise AssertionError(error.message) from error
        raise


def _usable(options: Options) -> Options:
    """Return stored options in a usable form: not frozen, and not for an offline target."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    return options


def _user_module(model: nn.Module | PoplarExecutor) -> nn.Module:
    """Return the module to wrap: that of an executor, or the module itself.

    Raises:
        Error: anything else, or a module that is or holds a scripted one.
    """
    return checked_module(model.model if isinstance(model, PoplarExecutor) else model)


@program_of_module.register(Options)
def _program_of_module(options: Options, model: Any, inputs: Any, **more: Any) -> Program:
    # The performance model is imported only when needed, so that `import poptorch` stays fast.
    from poptorch._backend.modelling import program_of_module

    return program_of_module(options, _user_module(model), inputs, **more)
