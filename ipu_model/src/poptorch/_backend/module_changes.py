"""A copy of a module with changes that a search wants to try: its types, blocks, checkpoints and micro-batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.front_ends import ModuleChanges
from poptorch._args_parser import BoundArguments
from poptorch._impl import createPoptorchError
from poptorch.ops.annotations import checkpoints_noted, recomputationCheckpoint
from poptorch.ops.blocks import BeginBlock, removeBlocks
from poptorch.options import Options
from poptorch.options.strategies import ShardedExecution


def changed_module(module: nn.Module, changes: ModuleChanges) -> nn.Module:
    """Return a copy of `module` with the changes; it shares all weights that keep their type.

    Weights in another type have no data: they are for capturing a program only.

    Raises:
        Error: a module that cannot be copied, or names of modules that it does not have.
    """
    twin = _copied(module, half=changes.half)
    if changes.begins is not None:
        removeBlocks(twin)
        for name, ipu in changes.begins.items():
            BeginBlock(_submodule(twin, name), ipu_id=ipu)
    for name in changes.checkpoints or ():
        _submodule(twin, name).register_forward_hook(_keep_output)
    return twin


def _copied(module: nn.Module, *, half: bool) -> nn.Module:
    """Copy the module deeply, but for the data of its weights."""
    known: dict[int, Any] = {}
    for parameter in module.parameters():
        halved = half and parameter.is_floating_point()
        known[id(parameter)] = _without_data(parameter) if halved else parameter
    for buffer in module.buffers():
        known[id(buffer)] = buffer.half() if half and buffer.is_floating_point() else buffer
    try:
        twin: nn.Module = copy.deepcopy(module, known)
    except Exception as problem:
        raise createPoptorchError(
            f"The module cannot be copied, so nothing that changes it was tried: {type(problem).__name__}: {problem}"
        ) from problem
    return twin


def _without_data(parameter: nn.Parameter) -> nn.Parameter:
    empty = torch.empty_like(parameter, dtype=torch.half, device="meta")
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as problem:
        raise createPoptorchError(f"The module has no submodule {name!r}: {problem}") from problem


def _keep_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    try:
        with checkpoints_noted():
            return recomputationCheckpoint(output)
    except ValueError as problem:
        raise createPoptorchError(
            f"{type(module).__name__} returns what cannot be a checkpoint: {problem}"
        ) from problem


def changed_options(options: Options, changes: ModuleChanges) -> Options:
    """Return a copy of options with the counts of micro-batches and the execution that are asked for."""
    own: Options = options.clone()
    own._unfreeze()
    if changes.batching is not None:
        own.deviceIterations(changes.batching.device_iterations)
        own.replicationFactor(changes.batching.replicas)
        own.Training.gradientAccumulation(changes.batching.accumulation)
    if changes.sharded:
        own.setExecutionStrategy(ShardedExecution())
    return own


def changed_arguments(
    arguments: BoundArguments, slices: int, new_slices: int, rows: int, changes: ModuleChanges
) -> BoundArguments:
    """Return arguments without data, of whole calls of `new_slices` micro-batches in place of `slices`.

    A micro-batch of `rows` rows becomes one of as many as is asked for.

    Raises:
        Error: inputs of several numbers of rows, not all of which can change in proportion.
    """
    wanted = rows if changes.micro_batch is None else changes.micro_batch

    def changed(tensor: Tensor) -> Tensor:
        dtype = torch.half if changes.half and tensor.is_floating_point() else tensor.dtype
        if not tensor.dim():
            return torch.empty((), dtype=dtype, device="meta")
        own = tensor.shape[0] // slices
        if own * wanted % rows:
            raise createPoptorchError(f"An input with {own} rows cannot have {wanted} for each {rows} of another.")
        return torch.empty((own * wanted // rows * new_slices, *tensor.shape[1:]), dtype=dtype, device="meta")

    return arguments.with_tensors([changed(tensor) for tensor in arguments.tensors])
