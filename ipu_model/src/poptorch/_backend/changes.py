"""Programs of modules that are not compiled: as they are, or as copies with changes that a search wants to try.

A copy shares all weights that keep their type; those in another type have no data, since a program is only captured.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from ipu_model.front_ends import ModuleChanges
from ipu_model.predict.hardware import System
from ipu_model.predict.program import Program
from poptorch._args_parser import ArgsParser, BoundArguments, check_inputs
from poptorch._backend.compile import trace
from poptorch._backend.modelling import program_of
from poptorch._backend.settings import batching_of, micro_batch_specs, own_options
from poptorch._backend.weights import Optimisation
from poptorch._backend.wrapping import shallow_copy
from poptorch.ops.annotations import checkpoints_noted, recomputationCheckpoint
from poptorch.ops.blocks import BeginBlock, removeBlocks
from poptorch.options import Options
from poptorch.options.backend import validate_options
from poptorch.options.strategies import ShardedExecution


@torch.inference_mode(False)
def program_of_module(
    options: Options,
    module: nn.Module,
    inputs: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    training: bool | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
    changes: ModuleChanges | None = None,
) -> Program:
    """Return the program that wrapping `module` with these options and calling it with `inputs` would compile.

    There may be more replicas than one process can run; other processes need not exist.
    """
    trains = optimizer is not None if training is None else training
    if optimizer is not None and not trains:
        raise Error(
            "An inference program has no optimizer. Leave it out, or ask for training=True (the default with one)."
        )
    own = own_options(options, trains)
    batching_of(own)
    validate_options(own.toDict())
    optimisation = Optimisation(optimizer, module, own) if trains else None
    twin = shallow_copy(module)
    arguments = _arguments(twin, inputs, own, micro_batch=micro_batch)
    if changes is not None:
        return captured_again(twin, own, arguments, training=trains, changes=changes)
    graph, step = trace(twin, own, arguments, training=trains, one_process=False)
    spec = None if optimisation is None else optimisation.spec
    groups = None if optimisation is None else optimisation.groups(twin)
    return program_of(graph, step, own, training=trains, optimiser=spec, groups=groups, machine=machine)


def _arguments(module: nn.Module, inputs: Any, options: Options, *, micro_batch: bool) -> BoundArguments:
    parser, batching = ArgsParser(module), batching_of(options)
    if isinstance(inputs, Mapping):
        arguments = parser((), dict(inputs))
    else:
        arguments = parser(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})
    check_inputs(arguments.tensors)
    if micro_batch:
        return arguments.with_tensors(
            [_empty(t, t.shape[0] * batching.slices if t.dim() else 0, t.dtype) for t in arguments.tensors]
        )
    try:
        micro_batch_specs(arguments.tensors, batching)
    except AssertionError as error:
        raise AssertionError(
            f"{error} If the inputs are those of one micro-batch, say micro_batch=True; a function that returns the "
            'program says so in a dict of all arguments: {"model": ..., "micro_batch": True}.'
        ) from None
    return arguments


def _empty(tensor: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    shape = (rows, *tensor.shape[1:]) if tensor.dim() else ()
    return torch.empty(shape, dtype=dtype, device="meta")


@torch.inference_mode(False)
def captured_again(
    module: nn.Module, options: Options, arguments: BoundArguments, *, training: bool, changes: ModuleChanges
) -> Program:
    """Return the program of a copy of `module` with changes, without optimiser; `arguments` are those of one call."""
    wanted: Options = options.clone()
    wanted._unfreeze()
    if changes.batching is not None:
        wanted.deviceIterations(changes.batching.device_iterations)
        wanted.replicationFactor(changes.batching.replicas)
        wanted.Training.gradientAccumulation(changes.batching.accumulation)
    if changes.sharded:
        wanted.setExecutionStrategy(ShardedExecution())
    own = own_options(wanted, training)
    slices, new_slices = batching_of(options).slices, batching_of(own).slices
    rows = next((tensor.shape[0] // slices for tensor in arguments.tensors if tensor.dim()), 1)
    micro_batch = rows if changes.micro_batch is None else changes.micro_batch
    tensors = []
    for tensor in arguments.tensors:
        its_rows = tensor.shape[0] // slices if tensor.dim() else rows
        if its_rows * micro_batch % rows:
            raise Error(f"An input with {its_rows} rows cannot have {micro_batch} for each {rows} of another.")
        dtype = torch.half if changes.half and tensor.is_floating_point() else tensor.dtype
        tensors.append(_empty(tensor, its_rows * micro_batch // rows * new_slices, dtype))
    with checkpoints_noted(changes.checkpoints is None):
        twin, changed = _changed_module(module, changes), arguments.with_tensors(tensors)
        graph, step = trace(twin, own, changed, training=training, one_process=False, warns=False)
    return program_of(graph, step, own, training=training)


def _changed_module(module: nn.Module, changes: ModuleChanges) -> nn.Module:
    shared: dict[int, Any] = {}
    for parameter in module.parameters():
        shared[id(parameter)] = parameter
        if changes.half and parameter.is_floating_point():
            empty = torch.empty_like(parameter, dtype=torch.half, device="meta")
            shared[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        shared[id(buffer)] = buffer.half() if changes.half and buffer.is_floating_point() else buffer
    try:
        twin: nn.Module = copy.deepcopy(module, shared)
    except Exception as problem:
        raise Error(
            f"The module cannot be copied, so nothing that changes it was tried: {type(problem).__name__}: {problem}"
        ) from problem
    if changes.begins is not None:
        removeBlocks(twin)
    try:
        for name, ipu in (changes.begins or {}).items():
            BeginBlock(twin.get_submodule(name), ipu_id=ipu)
        for name in changes.checkpoints or ():
            twin.get_submodule(name).register_forward_hook(_keep_output)
    except AttributeError as problem:
        raise Error(f"The module has no submodule {name!r}: {problem}") from problem
    return twin


def _keep_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    try:
        with checkpoints_noted():
            return recomputationCheckpoint(output)
    except ValueError as problem:
        raise Error(f"{type(module).__name__} returns what cannot be a checkpoint: {problem}") from problem
