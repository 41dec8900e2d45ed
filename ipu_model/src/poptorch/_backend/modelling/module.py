"""A module's program without an executor: captured for the performance model only, no number is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.batching import Batching
from ipu_model.predict.hardware import System
from ipu_model.program import Program
from poptorch._args_parser import BoundArguments, Signature, check_inputs
from poptorch._backend.compilation import batching_of, check_counts, micro_batch_specs, trace
from poptorch._backend.modelling.program import program_of
from poptorch._backend.optimisation import Optimisation
from poptorch._backend.own_copies import own_options, shallow_copy
from poptorch._backend.wrap import user_module
from poptorch._impl import createPoptorchError
from poptorch.options import Options
from poptorch.options.handover import validate_options


@torch.inference_mode(False)
def program_of_module(
    options: Options,
    model: nn.Module,
    inputs: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    training: bool | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
) -> Program:
    """Return the program that wrapping `module` with these options and calling it with `inputs` would compile.

    Module and options stay as they are. Replicas may be more than one process can have, and other processes need
    not run.

    Raises:
        Error: what PopTorch refuses when it wraps and compiles; an optimiser for inference.
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
    """
    trains = optimizer is not None if training is None else training
    if optimizer is not None and not trains:
        raise createPoptorchError(
            "An inference program has no optimizer. Leave it out, or ask for training=True (the default with one)."
        )
    module = user_module(model)
    own = own_options(options, trains)
    check_counts(batching_of(own))
    validate_options(own.toDict())
    optimisation = Optimisation(optimizer, module, own) if trains else None
    twin = shallow_copy(module)
    arguments = _arguments(twin, inputs, batching_of(own), micro_batch=micro_batch)
    graph = trace(twin, own, arguments, training=trains, one_process=False)
    return program_of(
        graph,
        own,
        training=trains,
        optimiser=optimisation.spec if optimisation is not None else None,
        groups=optimisation.groups(twin) if optimisation is not None else None,
        machine=machine,
    )


def _arguments(module: nn.Module, inputs: Any, batching: Batching, *, micro_batch: bool) -> BoundArguments:
    """Bind `inputs` to forward's parameters, as the arguments of one call.

    Raises:
        AssertionError: rows that do not divide into micro-batches.
    """
    signature = Signature(module.forward)
    if isinstance(inputs, Mapping):
        arguments = signature.bind((), dict(inputs))
    else:
        arguments = signature.bind(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})
    check_inputs(arguments.tensors)
    if micro_batch:
        return arguments.with_tensors([_of_whole_call(tensor, batching.slices) for tensor in arguments.tensors])
    try:
        micro_batch_specs(arguments.tensors, batching)
    except AssertionError as error:
        raise AssertionError(f"{error} If the inputs are those of one micro-batch, say micro_batch=True.") from None
    return arguments


def _of_whole_call(tensor: Tensor, slices: int) -> Tensor:
    """Return a tensor without data, of the shape that a call has whose micro-batches are like `tensor`."""
    shape = (tensor.shape[0] * slices, *tensor.shape[1:]) if tensor.dim() else ()
    return torch.empty(shape, dtype=tensor.dtype, device="meta")
