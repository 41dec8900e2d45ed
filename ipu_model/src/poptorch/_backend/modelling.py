"""From a captured graph and options to the program to model, and the check that it fits into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.errors import Error, OutOfMemory
from ipu_model.front_ends import ModuleChanges
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict import hardware, memory_of_program
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import Chip, System
from ipu_model.predict.memory.out_of_memory import note_on_memory, out_of_memory
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.recomputation import default_recomputation
from ipu_model.step import ipus_in_use
from poptorch._args_parser import ArgsParser, BoundArguments, check_inputs
from poptorch._backend.compilation import batching_of, check_counts, micro_batch_specs, returns_of, trace
from poptorch._backend.module_changes import changed_arguments, changed_module, changed_options
from poptorch._backend.optimisation import Optimisation
from poptorch._backend.own_copies import own_options, shallow_copy
from poptorch._backend.rules import MAX_IPUS, ipus_of_replica, overlaps, reserved_ipus
from poptorch._impl import createPoptorchError
from poptorch.ops.annotations import checkpoints_noted
from poptorch.ops.overlap import INPUT, OUTPUT
from poptorch.options import Options
from poptorch.options.backend import validate_options
from poptorch.options.strategies import PipelinedExecution, runs_stages_at_once

# In the order of PopART's RecomputationType (options reference, section 9).
_RECOMPUTATION = (
    Recomputation.NONE, Recomputation.STANDARD, Recomputation.NORM_ONLY, Recomputation.PIPELINE, Recomputation.ALL,
)  # fmt: skip

_LOCATION_FIELDS = {
    "onChip": "on_chip",
    "useReplicatedTensorSharding": "sharded",
    "minElementsForOffChip": "least_off_chip",
    "minElementsForReplicatedTensorSharding": "least_sharded",
}


def program_of(
    graph: Graph,
    options: Options,
    *,
    training: bool,
    optimiser: OptimiserSpec | None = None,
    groups: Mapping[str, int | None] | None = None,
    machine: str | System | None = None,
) -> Program:
    """Return the program to model for a captured graph under (resolved) options.

    `groups` maps names of parameters to the parameter groups of `optimiser`.

    Raises:
        Error: the machine is too small or does not exist, or a memory proportion is not between 0 and 1.
    """
    backend = options._backend
    batching, processes = over_processes(batching_of(options), ipus_of_replica(graph))
    processes *= max(1, options.Distributed.numProcesses)
    reserved = reserved_ipus(ipus_of_replica(graph) * batching.replicas, options) * processes
    system = machine_for(options, reserved, machine)
    return Program(
        step=step_of(graph),
        training=training,
        batching=batching,
        returns=returns_of(options),
        system=system,
        execution=_execution(options),
        settings=_settings(options, system),
        optimiser=optimiser,
        groups=dict(groups or {}),
        recomputation=_recomputation(graph, options) if training else Recomputation.NONE,
        locations=_locations(options),
        io_tiles=options.TensorLocations("numIOTiles") if options.TensorLocations.exists("numIOTiles") else 0,
        overlaps_input=backend.explicit_io and overlaps(graph, INPUT),
        overlaps_output=backend.explicit_io and overlaps(graph, OUTPUT),
        prefetch_depth=backend.prefetch_depth,
        synthetic_data=backend.synthetic_data,
        processes=processes,
        reserved_ipus=reserved if options.auto_round_num_ipus else None,
        name=model_name(options, training),
    )


def over_processes(batching: Batching, ipus_per_replica: int) -> tuple[Batching, int]:
    """Return the batching of one process and the smallest number of processes that can run all replicas.

    Raises:
        Error: replicas that share their input need more IPUs than one process can have.
    """
    for processes in range(1, batching.replicas + 1):
        replicas = batching.replicas // processes
        whole = batching.replicas % processes == 0 and replicas % batching.input_group == 0
        if whole and replicas * ipus_per_replica <= MAX_IPUS:
            return replace(batching, replicas=replicas), processes
    raise Error(
        f"inputReplicaGrouping: {batching.input_group} replicas of {ipus_per_replica} IPUs share their input, and one "
        f"process has at most {MAX_IPUS} IPUs. Use smaller groups."
    )


def model_name(options: Options, training: bool) -> str:
    """Return the name of reports: that of `Options.modelName`, else "training" or "inference"."""
    if options.exists("model_name"):
        return str(options.model_name)
    return "training" if training else "inference"


def _execution(options: Options) -> Execution:
    if runs_stages_at_once(options._execution_strategy) and options._backend.pipelining:
        return Execution.PIPELINED
    return Execution.SHARDED


def _recomputation(graph: Graph, options: Options) -> Recomputation:
    """Return the mode that was set, else PopTorch's default."""
    chosen = options._backend.recomputation
    if chosen is not None:
        return _RECOMPUTATION[chosen]
    return default_recomputation(_execution(options), len(ipus_in_use(step_of(graph))), training=True)


def _settings(options: Options, system: System) -> CostSettings:
    backend = options._backend
    return CostSettings(
        device=Device(chip=system.chip),
        half_partials=backend.half_matmuls,
        half_partials_of_convolutions=backend.half_convolutions,
        available_memory_proportion={
            ipu: _proportion(ipu, share) for ipu, share in options.available_memory_proportion.items()
        },
        stable_norm=backend.stable_norm,
    )


def _proportion(ipu: int, share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise Error(
            f"setAvailableMemoryProportion: the share of IPU{ipu} must be a number between 0 and 1, not {share!r}."
        )
    return float(share)


def _locations(options: Options) -> Locations:
    return Locations(
        activations=_location(options, "location_activation"),
        weights=_location(options, "location_weight"),
        optimiser=_location(options, "location_optimizer"),
        accumulators=_location(options, "location_accumulator"),
    )


def _location(options: Options, key: str) -> Location:
    """Return one category's place; phased execution keeps tensors off chip unless told otherwise."""
    phased = not isinstance(options._execution_strategy, PipelinedExecution)
    chosen: dict[str, Any] = {"on_chip": not phased}
    stored = options.TensorLocations(key) if options.TensorLocations.exists(key) else {}
    chosen |= {_LOCATION_FIELDS[name]: value for name, value in stored.items() if name in _LOCATION_FIELDS}
    chosen["on_chip"] = bool(chosen["on_chip"])
    return Location(**chosen)


_VARIABLE = "IPU_MODEL_MACHINE"
_DEFAULT_CHIP = "GC200"

# Values of POPTORCH_IPU_MODEL_VERSION and the corresponding arguments of useOfflineIpuTarget.
_VERSIONS = {"ipu1": 1, "ipu2": 2, "ipu21": 21}
# Chips without a version number of their own use this one: to PopTorch, a Bow IPU is a Mk2 IPU.
_MK2 = 2


def machine_for(options: Options, ipus: int, wanted: str | System | None = None) -> System:
    """Return the machine for a program that occupies `ipus` IPUs.

    `wanted` takes precedence. Otherwise `useOfflineIpuTarget`, or else `POPTORCH_IPU_MODEL_VERSION`, chooses the chip,
    and `IPU_MODEL_MACHINE` names the machine if it has that chip. Otherwise the machine is the smallest system of that
    chip, or of GC200, with enough IPUs. A chip's name stands for its smallest system with enough IPUs.

    Raises:
        Error: no such machine, or it has fewer IPUs.
    """
    if wanted is not None:
        return hardware.system_with_room(wanted, ipus, "the argument machine")
    return modelled_system(ipus, int(options.ipu_version) if options.exists("ipu_version") else None)


def modelled_system(ipus: int, version: int | None = None) -> System:
    """Return the machine that the environment chooses for `ipus` IPUs, of the chip of offline version `version`.

    Raises:
        Error: no such machine, or it has fewer IPUs.
    """
    if version is None:
        version = _VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", ""))
    named = os.environ.get(_VARIABLE)
    if named and (version is None or version_of(hardware.chip(named)) == version):
        return hardware.system_with_room(named, ipus, f"the environment variable {_VARIABLE}")
    chip = _DEFAULT_CHIP if version is None else hardware.chip_of_offline_target(version).name
    return hardware.system_with(chip, ipus)


def version_of(chip: Chip) -> int:
    """Return PopTorch's version number of a chip: 1, 2 or 21."""
    by_name = {name: version for version, name in hardware.known_hardware().offline_versions.items()}
    return by_name.get(chip.name, _MK2)


_IGNORE_MEMORY = "IPU_MODEL_IGNORE_MEMORY"
_IGNORED = f"{_IGNORE_MEMORY} is set, so this machine runs the program all the same; IPUs could not."
_UNKNOWN = (
    "The IPU Model cannot say whether this program fits into memory: it failed with {} ({}), which is a bug in the "
    "model. The program's numbers are not affected; ipu_model.profile(model) shows where it happens."
)


def ignores_memory() -> bool:
    """Return whether the environment asks to run programs that do not fit into memory."""
    return os.environ.get(_IGNORE_MEMORY, "0") not in ("", "0")


def memory_warnings(program: Program, *, ignored: bool) -> tuple[str, ...]:
    """Refuse a program that clearly does not fit, unless that is `ignored`; return a warning if it is close.

    Raises:
        OutOfMemory: names the fullest tile, what it holds and what usually helps.
        Error: hints that no device can follow.
    """
    try:
        memory = memory_of_program(program)
    except Error:
        raise
    except Exception as problem:  # a bug in the model must not stop a program whose results are right
        return (_UNKNOWN.format(type(problem).__name__, problem),)
    error = out_of_memory(memory, program)
    if error is not None and not ignored:
        refusal = OutOfMemory(error.message, type=error.type)
        refusal.program = program
        raise refusal
    note = note_on_memory(memory, program)
    return (*([] if error is None else [f"{error.message} {_IGNORED}"]), *([] if note is None else [note]))


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

    Module and options do not change; `changes` are made to copies. There may be more replicas than one process can run;
    other processes need not exist.

    Raises:
        Error: what PopTorch refuses when it wraps and compiles; an optimiser for inference.
        AssertionError: rows that do not divide into micro-batches, unknown blocks.
    """
    trains = optimizer is not None if training is None else training
    if optimizer is not None and not trains:
        raise createPoptorchError(
            "An inference program has no optimizer. Leave it out, or ask for training=True (the default with one)."
        )
    own = own_options(options, trains)
    check_counts(batching_of(own))
    validate_options(own.toDict())
    optimisation = Optimisation(optimizer, module, own) if trains else None
    twin = shallow_copy(module)
    arguments = _arguments(twin, inputs, batching_of(own), micro_batch=micro_batch)
    if changes is not None:
        return captured_again(twin, own, arguments, training=trains, changes=changes)
    graph = trace(twin, own, arguments, training=trains, one_process=False)
    return program_of(
        graph,
        own,
        training=trains,
        optimiser=optimisation.spec if optimisation is not None else None,
        groups=optimisation.groups(twin) if optimisation is not None else None,
        machine=machine,
    )


@torch.inference_mode(False)
def captured_again(
    module: nn.Module, options: Options, arguments: BoundArguments, *, training: bool, changes: ModuleChanges
) -> Program:
    """Return the program of a copy of `module` with changes, without optimiser; `arguments` are those of one call.

    Raises:
        Error: a module that cannot be copied, or what PopTorch refuses of the changed one.
    """
    own = own_options(changed_options(options, changes), training)
    check_counts(batching_of(own))
    slices, new_slices = batching_of(options).slices, batching_of(own).slices
    rows = next((tensor.shape[0] // slices for tensor in arguments.tensors if tensor.dim()), 1)
    changed = changed_arguments(arguments, slices, new_slices, rows, changes)
    with checkpoints_noted(changes.checkpoints is None):
        again = changed_module(module, changes)
        graph = trace(again, own, changed, training=training, one_process=False, warns=False)
    return program_of(graph, own, training=training)


def _arguments(module: nn.Module, inputs: Any, batching: Batching, *, micro_batch: bool) -> BoundArguments:
    """Bind `inputs` to forward's parameters, as the arguments of one call.

    Raises:
        AssertionError: rows that do not divide into micro-batches.
    """
    parser = ArgsParser(module)
    if isinstance(inputs, Mapping):
        arguments = parser((), dict(inputs))
    else:
        arguments = parser(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})
    check_inputs(arguments.tensors)
    if micro_batch:
        return arguments.with_tensors([_of_whole_call(tensor, batching.slices) for tensor in arguments.tensors])
    try:
        micro_batch_specs(arguments.tensors, batching)
    except AssertionError as error:
        raise AssertionError(
            f"{error} If the inputs are those of one micro-batch, say micro_batch=True; a function that returns the "
            'program says so in a dict of all arguments: {"model": ..., "micro_batch": True}.'
        ) from None
    return arguments


def _of_whole_call(tensor: Tensor, slices: int) -> Tensor:
    """Return a tensor without data, in the shape of a whole call whose micro-batches look like `tensor`."""
    shape = (tensor.shape[0] * slices, *tensor.shape[1:]) if tensor.dim() else ()
    return torch.empty(shape, dtype=tensor.dtype, device="meta")
