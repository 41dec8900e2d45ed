"""Copies of the module and the options, so that an executor does not work on the program's own objects."""

from __future__ import annotations

import torch
from torch import nn

from poptorch._backend.wrapping import original_class
from poptorch._impl import createPoptorchError
from poptorch.enums import OutputMode
from poptorch.options import Options
from poptorch.options.strategies import runs_stages_at_once


def shallow_copy(module: nn.Module) -> nn.Module:
    """Copy the top-level object as an instance of its original class; registries and submodules stay shared.

    `copy.copy` does not work here: it uses the class's own pickling methods.
    """
    kind = original_class(module)
    twin: nn.Module = object.__new__(kind)
    twin.__dict__.update(vars(module))
    for name in (slot for base in kind.__mro__ for slot in base.__dict__.get("__slots__", ())):
        if hasattr(module, name):
            object.__setattr__(twin, name, getattr(module, name))
    return twin


def checked_module(module: object) -> nn.Module:
    """Return a module that can be wrapped.

    Raises:
        Error: anything else, or a module that is or holds a scripted one.
    """
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


def checked_options(options: Options | None) -> Options:
    """Return `options`, or new ones for `None`.

    Raises:
        Error: not an `Options`.
    """
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)} (expected poptorch.Options).")
    return options


def own_options(options: Options, training: bool) -> Options:
    """Return a frozen copy of `options` with the output mode resolved; `options` itself does not change.

    Raises:
        Error: gradient accumulation is set for an inference model.
    """
    own: Options = options.clone()
    own._resolve_output_mode(OutputMode.Final if training else OutputMode.All)
    if not training and own.Training.gradient_accumulation != 1:
        raise createPoptorchError(_no_accumulation(own))
    own._freeze()
    return own


def _no_accumulation(options: Options) -> str:
    text = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value "
        "(1) when running a poptorch.inferenceModel()."
    )
    if runs_stages_at_once(options._execution_strategy):
        text += (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for "
            "pipelined execution instead."
        )
    return text
