"""The functions that create executors, `trainingModel`, `inferenceModel` and `load`, and programs to explore."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from ipu_model.front_ends import ModuleChanges, captures_of, program_behind, program_of_module
from poptorch import _poptorch_data
from poptorch._args_parser import ArgsParser, BoundArguments, check_inputs
from poptorch._backend.compile import trace
from poptorch._backend.settings import batching_of, micro_batch_specs, own_options
from poptorch._backend.weights import Optimisation
from poptorch._backend.wrapping import shallow_copy
from poptorch._poplar_executor import NO_EXECUTABLE_ERR, PoplarExecutor
from poptorch._poptorch_data import OtherVersion, damage_named, path_of, unpickled
from poptorch.enums import AutoStage, CommGroupType, ConnectionType, VariableRetrievalMode
from poptorch.ops.annotations import checkpoints_noted, recomputationCheckpoint
from poptorch.ops.blocks import BeginBlock, removeBlocks
from poptorch.options import Options
from poptorch.options.backend import validate_options
from poptorch.options.strategies import PipelinedExecution, ShardedExecution

if TYPE_CHECKING:
    from ipu_model.predict.hardware import System
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
    return PoplarExecutor._around(_user_module(model), options, True, optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module for forward passes on the device; it follows a training model of the same weights.

    `options` are frozen.

        predictions = poptorch.inferenceModel(model.eval())(images)

    Raises `Error`: gradient accumulation in the options.
    """
    return PoplarExecutor._around(_user_module(model), options, False)


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
    for name, groups in executable.groupings.items():
        kind = CommGroupType.Orthogonal if groups.orthogonal else CommGroupType.Consecutive
        executor.per_replica_params[name] = kind, groups.size, VariableRetrievalMode.OnePerGroup
    executor._use(executable, path)
    return executor


def _user_module(model: nn.Module | PoplarExecutor) -> nn.Module:
    module: object = model.model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, nn.Module):
        raise Error(
            f"Invalid type: 'model' is of type {type(module)}, expected torch.nn.Module. Wrap a function in "
            "a module whose forward calls it."
        )
    for name, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            inside = f" ('{name}' is one)" if name else ""
            raise Error(f"A scripted module cannot be traced again{inside}: wrap the module it was made from.")
    return module


# --- programs to explore: of compiled models, of modules as they are, or of copies with changes that a search tries
#
# The performance model is imported only when it is needed, so that `import poptorch` stays quick.


@program_behind.register(PoplarExecutor)
def _program_behind(executor: PoplarExecutor) -> Program:
    if executor._modelled is None:
        raise Error(
            f"{NO_EXECUTABLE_ERR[:-1]}, so there is no program to model. Call the model, "
            "or compile() it, first; ipu_model.profile_module(module, inputs, options) needs neither."
        )
    return executor._modelled[0]


@captures_of.register(PoplarExecutor)
def _captures_of(executor: PoplarExecutor) -> Callable[[ModuleChanges], Program] | None:
    if executor._modelled is None:
        return None
    program, arguments = executor._modelled
    module, options = executor._traced_model, executor._options
    return lambda changes: captured_again(module, options, arguments, training=program.training, changes=changes)


@program_of_module.register(Options)
@torch.inference_mode(False)
def _program_of_module(
    options: Options,
    model: Any,
    inputs: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    training: bool | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
    changes: ModuleChanges | None = None,
) -> Program:
    # There may be more replicas than one process can run; other processes need not exist.
    from poptorch._backend.modelling import program_of

    module = _user_module(model)
    trains = optimizer is not None if training is None else training
    if optimizer is not None and not trains:
        raise Error(
            "An inference program has no optimizer. Leave it out, or ask for training=True (the default with one)."
        )
    own = own_options(options, trains)
    batching_of(own)
    validate_options(own.toDict())
    twin = shallow_copy(module)
    optimisation = Optimisation(optimizer, twin, own) if trains else None
    arguments = _arguments(twin, inputs, own, micro_batch=micro_batch)
    if changes is not None:
        return captured_again(twin, own, arguments, training=trains, changes=changes)
    graph = trace(twin, own, arguments, training=trains, one_process=False)
    return program_of(graph, own, optimisation, machine=machine)


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
    """Return the program of a copy of `module` with changes, without optimiser; `arguments` are those of one call.

    The copy shares all weights that keep their type; those in another type have no data, since it is only captured.
    """
    from poptorch._backend.modelling import program_of

    wanted: Options = options.clone()
    wanted._unfreeze()
    if changes.batching is not None:
        wanted.deviceIterations(changes.batching.device_iterations)
        wanted.replicationFactor(changes.batching.replicas)
        wanted.Training.gradientAccumulation(changes.batching.accumulation)
    if changes.sharded:
        wanted.setExecutionStrategy(ShardedExecution())
    elif 0 in (changes.begins or {}).values():  # blocks on one IPU are stages of their own
        wanted.setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
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
        graph = trace(twin, own, changed, training=training, one_process=False, warns=False)
    return program_of(graph, own)


def _changed_module(module: nn.Module, changes: ModuleChanges) -> nn.Module:
    shared: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        shared[id(tensor)] = tensor
        if changes.half and tensor.is_floating_point():
            empty = torch.empty_like(tensor, dtype=torch.half, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            shared[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
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
