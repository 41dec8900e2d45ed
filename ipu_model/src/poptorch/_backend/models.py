"""The functions that create executors, `trainingModel`, `inferenceModel` and `load`, and programs to explore."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ipu_model.errors import Error
from ipu_model.front_ends import ModuleChanges, captures_of, program_behind, program_of_module
from poptorch import _poptorch_data
from poptorch._backend.wrapping import checked_module, refuse_wrapped
from poptorch._poplar_executor import NO_EXECUTABLE_ERR, PoplarExecutor
from poptorch._poptorch_data import OtherVersion, damage_named, path_of, unpickled
from poptorch.enums import ConnectionType
from poptorch.options import Options

if TYPE_CHECKING:
    from ipu_model.predict.program import Program


def trainingModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Wrap a module so that every call trains it: forward, backward and weight updates on the device.

    `options` are frozen; `optimizer=None` means `poptorch.optim.SGD(model.parameters(), lr=0.01)`.

        trainer = poptorch.trainingModel(model, poptorch.Options().deviceIterations(10), optimizer)
        outputs, loss = trainer(images, labels)

    Raises `RuntimeError`: the module is already wrapped for training.
    """
    module = _user_module(model)
    refuse_wrapped(module)
    return PoplarExecutor(module, options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module for forward passes on the device; it follows a training model of the same weights.

    `options` are frozen.

        predictions = poptorch.inferenceModel(model.eval())(images)

    Raises `Error`: gradient accumulation in the options.
    """
    return PoplarExecutor(_user_module(model), options, training=False)


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None, *, weights_only: bool = True
) -> PoplarExecutor:
    """Return the executor that `save` or `compileAndExport` wrote with its model: wrapped, compiled and attached.

    `edit_opts_fn(options)` may change the stored options before they are used, but not those that the program was
    compiled with. An offline target becomes `ConnectionType.Always`. The model's forward is traced, and must give the
    program that was saved.

        trainer.save("trained.poptorch")
        trainer = poptorch.load("trained.poptorch")

    As with `torch.load`, a file is read without executing what it contains: the classes of the model must have been
    imported before, and other functions and classes in it must be allowed by `torch.serialization.add_safe_globals`.
    The author of the file still decides what the model computes, as far as its attributes determine it.
    **With `weights_only=False` anything in the file may run: use it for files that you trust only.**

    Raises `AssertionError`: the file was written by another version, or without its model (`export_model=False`);
    `Error`: "Invalid file", and why; `OSError`: the file cannot be read.
    """
    path = path_of(filename)
    try:
        executable = _poptorch_data.read(path)
    except Error as error:
        if isinstance(error.__cause__, OtherVersion):
            raise AssertionError(error.message) from error
        raise
    if executable.exported_model is None:
        raise AssertionError(
            f"Invalid file {path}: it was saved with export_model=False, without the model. Create the model again, "
            "wrap it and call loadExecutable."
        )
    model, optimizer, options = unpickled(executable.exported_model, path, weights_only=weights_only)
    with damage_named(path):
        options._unfreeze()
        options.deleteIfExists("ipu_version")
        if options.connection_type == ConnectionType.Never:
            options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    with damage_named(path):
        executor = trainingModel(model, options, optimizer) if executable.training else inferenceModel(model, options)
        _poptorch_data.check_groupings(executable, path, executor._traced_model, executor._options)
        executor._host.groupings.update(executable.replica_groups)
    executor._use(executable, path)
    return executor


def _user_module(model: nn.Module | PoplarExecutor) -> nn.Module:
    return checked_module(model.model if isinstance(model, PoplarExecutor) else model)


# The performance model is imported only when it is needed, so that `import poptorch` stays quick.


@program_of_module.register(Options)
def _program_of_module(options: Options, model: Any, inputs: Any, **more: Any) -> Program:
    from poptorch._backend.changes import program_of_module

    return program_of_module(options, _user_module(model), inputs, **more)


@program_behind.register(PoplarExecutor)
def _program_behind(executor: PoplarExecutor) -> Program:
    if executor._compiled is not None:
        return executor._compiled.program
    if executor._too_large is not None:
        return executor._too_large[0]
    raise Error(
        f"{NO_EXECUTABLE_ERR[:-1]}, so there is no program to model. Call the model, "
        "or compile() it, first; ipu_model.profile_module(module, inputs, options) needs neither."
    )


@captures_of.register(PoplarExecutor)
def _captures_of(executor: PoplarExecutor) -> Callable[[ModuleChanges], Program] | None:
    from poptorch._backend.changes import captured_again

    now, training = executor._compiled, executor._optimisation is not None
    arguments = now.arguments if now is not None else executor._too_large[1] if executor._too_large else None
    if arguments is None:
        return None
    module, options = executor._traced_model, executor._options
    return lambda changes: captured_again(module, options, arguments, training=training, changes=changes)
