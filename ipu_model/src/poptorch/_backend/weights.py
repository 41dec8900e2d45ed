"""The host's side of what training changes: weights, which replicas share them, the optimiser and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.batching import ReplicaGroups
from ipu_model.capture.graph import Graph
from ipu_model.capture.torch_private import tensors_swapped
from ipu_model.capture.variables import slots_of
from ipu_model.compute.gradients import FACTOR
from ipu_model.compute.rounding import Rounding
from ipu_model.compute.session import Session
from ipu_model.compute.updater import Updater
from ipu_model.errors import Error, require, unsupported
from ipu_model.optimiser import OptimiserSpec
from ipu_model.step import FLOAT16, Variable
from poptorch import optim
from poptorch._logging import logger
from poptorch._optimizer_attributes import OptimizerAttrTracker, group_of, read_spec
from poptorch._options_impl import check_type
from poptorch.enums import CommGroupType, MeanReductionStrategy, VariableRetrievalMode
from poptorch.options import Options


class HostWeights:
    """The parameters and buffers of a module as registered at each transfer; wrapped ones are read as plain ones."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # Parameters of which every group of replicas has its own slice, by name.
        self.groupings: dict[str, ReplicaGroups] = {}

    def tensors(self) -> list[Tensor]:
        with torch._C.DisableTorchFunctionSubclass():
            return [slot.tensor for slot in slots_of(self._module)]

    def values(self, graph: Graph, variables: tuple[Variable, ...]) -> dict[str, Tensor]:
        registered = self._registered()
        values: dict[str, Tensor] = {}
        for variable in variables:
            tensor = registered.get(variable.name)
            if tensor is None:
                continue
            if tensor.is_meta:
                raise Error(
                    f"'{variable.name}' is on the device 'meta' and has no data. Give the model data before you call "
                    "or compile it: model.to_empty(device='cpu') and then load_state_dict(state), or "
                    "load_state_dict(state, assign=True)."
                )
            groups = self.groupings.get(variable.name)
            slices = () if groups is None else (groups.count,)
            shape = (*slices, *graph.spec(variable.tensor).shape)
            if tuple(tensor.shape) != shape:
                raise Error(
                    f"'{variable.name}' has shape {list(tensor.shape)}, but the model was compiled for "
                    f"{list(shape)}. Call destroy() on the model first to compile it again."
                )
            values[variable.name] = tensor
        return values

    def store(self, values: Mapping[str, Tensor]) -> None:
        """Copy device values into the host's tensors in place, so that every reference sees the new values."""
        registered = self._registered()
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for name, value in values.items():
                if name in registered:
                    target = registered[name]
                    # Elements of expand() share memory, and are equal in a buffer.
                    once = tuple(slice(0, None if stride else 1) for stride in target.stride())
                    torch.Tensor.copy_(target[once], value[once])

    def _registered(self) -> dict[str, Tensor]:
        # Plain tensors that share the storage of the registered ones.
        with torch._C.DisableTorchFunctionSubclass():
            return {name: torch.Tensor.detach(slot.tensor) for slot in slots_of(self._module) for name in slot.names}


def groups_of(name: str, module: nn.Module, options: Options, kind: Any, shards: Any, mode: Any) -> ReplicaGroups:
    """Return the groups of a parameter of the module; raise `Error` if they do not fit it or the options."""
    parameter = dict(module.named_parameters()).get(name)
    if parameter is None:
        raise Error(f"replicaGrouping() of parameter '{name}': the model has no parameter of this name.")
    check_type("replicaGrouping", kind, CommGroupType)
    require(isinstance(shards, int), f"shards is the number of replicas of a group, an int; got {shards!r}.")
    check_type("replicaGrouping", mode, VariableRetrievalMode)
    if parameter.dim() == 0:
        raise Error(
            f"Scalars cannot be passed as per-replica weight values: give '{name}' a leading dimension, one element "
            "for each group of replicas."
        )
    if not parameter.is_floating_point():
        raise unsupported(
            f"replicaGrouping() of parameter '{name}' of type {parameter.dtype}", "Use a floating-point parameter."
        )
    replicas = options.replication_factor
    size = {CommGroupType.All: replicas, CommGroupType.NoGrouping: 1}.get(kind, shards)
    if size < 1 or replicas % size:
        raise Error(
            f"replicaGrouping() of parameter '{name}': {replicas} replicas do not divide into groups of {size}. Use a "
            "divisor of poptorch.Options().replicationFactor."
        )
    groups = ReplicaGroups(replicas, size, orthogonal=kind is CommGroupType.Orthogonal)
    if parameter.shape[0] != groups.count:
        raise Error(
            f"replicaGrouping() of parameter '{name}': its leading dimension is {parameter.shape[0]}, but {replicas} "
            f"replicas in groups of {size} are {groups.count} groups. The leading dimension enumerates the groups."
        )
    return groups


def check_grouped(
    groupings: Mapping[str, ReplicaGroups], module: nn.Module, options: Options, spec: OptimiserSpec | None
) -> None:
    if not groupings:
        return
    grouped = "replicaGrouping() of parameter " + ", ".join(f"'{name}'" for name in groupings)
    if options.Distributed.numProcesses > 1:
        raise unsupported(f"{grouped} with several processes", "Run all replicas in one process.")
    if spec is not None and spec.family == "LAMB":
        raise unsupported(f"{grouped} with LAMB", "Use an optimiser without norms of whole tensors.")
    if spec is not None and spec.max_grad_norm != math.inf:
        raise unsupported(f"{grouped} with max_grad_norm", "Leave gradient clipping off.")
    tied = [slot.names for slot in slots_of(module) if len(slot.names) > 1 and set(slot.names) & set(groupings)]
    if tied:
        raise unsupported(
            f"replicaGrouping() of a parameter under several names ({', '.join(tied[0])})", "Register it once."
        )


def one_slice_each(module: nn.Module, groupings: Mapping[str, ReplicaGroups]) -> AbstractContextManager[None]:
    """Let `module` hold one group's slice of its grouped parameters, which is what forward sees of them."""
    slices: dict[str, Tensor] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for name in groupings:
            parameter = module.get_parameter(name)
            slices[name] = nn.Parameter(torch.Tensor.detach(parameter)[0], requires_grad=parameter.requires_grad)
    return tensors_swapped(module, slices)


class ParameterView:
    """The value of `executor.weight`: it reads and writes attributes of the parameter (`.data`, `.shape`, ...).

    It is not a tensor itself: pass `executor.model.<name>` to torch functions. `group` is called with the arguments of
    `replicaGrouping`.
    """

    def __init__(self, parameter: nn.Parameter, group: Callable[[Any, Any, Any], None]) -> None:
        self.__dict__.update(_parameter=parameter, _group=group)

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode
    ) -> None:
        """Let every group of replicas train its own slice: the leading dimension enumerates the groups.

        Forward sees the parameter without that dimension. `shards` is the number of replicas of a group, which `All`
        and `NoGrouping` do not need. Both retrieval modes return one value per group, because the replicas of a group
        have equal values. Raises `Error`: the model is compiled, or groups that do not fit replicas or parameter.
        """
        self.__dict__["_group"](comm_group_type, shards, variable_retrieval_mode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_parameter"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_parameter"], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["_parameter"])


class Optimisation:
    """One training executor's optimiser object, with its numbers as the device uses them."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, module: nn.Module, options: Options) -> None:
        if optimizer is None:
            optimizer = optim.SGD(module.parameters(), lr=0.01)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and any(s == 0 < n - 1 for s, n in zip(parameter.stride(), parameter.shape)):
                raise Error(
                    f"Elements of the parameter '{name}' share memory, as those of expand() do, so they cannot be "
                    "trained one by one. Make the parameter of a copy: torch.nn.Parameter(tensor.clone())."
                )
        self._tracker, self._options, self._module = OptimizerAttrTracker(options), options, module
        self.optimizer = optimizer
        self.spec = self._read(optimizer, is_compiled=False)

    def _read(self, optimizer: torch.optim.Optimizer, *, is_compiled: bool) -> OptimiserSpec:
        spec, options = read_spec(optimizer, self._tracker), self._options
        if options._backend.adapts_loss_scaling:
            spec = replace(spec, loss_scaling_variable=True)
        if spec.accum_dtype != FLOAT16 or spec.family == "SGD1":
            return spec
        # Only a running mean keeps float16 accumulators in range.
        running = MeanReductionStrategy.Running
        if options.Training.meanAccumulationAndReplicationReductionStrategy != running:
            if is_compiled:
                raise ValueError(
                    "Invalid optimizer: float16 accumulators need MeanReductionStrategy.Running, but the "
                    "model is already compiled with another strategy. Call destroy() first, or set the "
                    "strategy before compiling."
                )
            options._unfreeze()
            options.Training.setMeanAccumulationAndReplicationReductionStrategy(running)
            options._freeze()
        return spec

    @property
    def groups(self) -> dict[str, int | None]:
        return group_of(self.optimizer, dict(self._module.named_parameters()))

    @property
    def stateful(self) -> optim.Optimizer | None:
        # Those of torch cannot hold the device's state.
        return self.optimizer if isinstance(self.optimizer, optim.Optimizer) else None

    def detach(self) -> None:
        if self.stateful is not None:
            self.stateful._unbind()

    def replace(self, optimizer: torch.optim.Optimizer, updates: Updates | None) -> None:
        """Use the numbers of `optimizer` from the next call on; `updates` are those of the compiled program, if any."""
        spec = self._read(optimizer, is_compiled=updates is not None)
        if updates is not None:
            updates.set_spec(spec)
        if optimizer is not self.optimizer:
            self.detach()
            self.optimizer = optimizer
            if updates is not None:
                updates.bind()
        if self.stateful is not None:
            self.stateful._drop_pending_parameters()
        self.spec = spec


class Updates:
    """The weight updates of one compiled program, and the transfer of their state to and from the optimiser."""

    def __init__(self, optimisation: Optimisation, session: Session, graph: Graph, options: Options, seed: int) -> None:
        self._optimisation, self._session = optimisation, session
        rounding = Rounding(overflow=session.arithmetic.overflow)
        if options._backend.stochastic_rounding:
            generator = torch.Generator().manual_seed(seed)
            rounding = replace(rounding, generator=generator)
            session.randomness.keep(generator, reseeded=options.Distributed.numProcesses == 1)
        weights = {name: session.weights[name] for name in graph.gradients}
        dtypes = {v.name: graph.spec(v.tensor).dtype for v in graph.variables}
        self._updater_of = partial(
            Updater, weights=weights, dtypes=dtypes, group_of=optimisation.groups, rounding=rounding
        )
        self._updater = self._started()

    def _started(self) -> Updater:
        updater = self._updater_of(self._optimisation.spec)
        self._session.update, self._session.numbers = updater.step, updater.parameters
        self._session.loss_scaling = updater.loss_scaling
        if self._session.automatic is not None:
            self._session.automatic.factor = 1.0
        return updater

    def set_spec(self, spec: OptimiserSpec) -> None:
        self._updater.set_spec(spec)
        self._session.loss_scaling = self._updater.loss_scaling

    def weights_replaced(self) -> None:
        """Note that all weights were uploaded: the state of a torch.optim optimiser then starts anew."""
        if self._optimisation.stateful is None:
            self._updater = self._started()

    def upload_pending(self) -> None:
        optimizer = self._optimisation.stateful
        if optimizer is None or optimizer._pending is None:
            return
        state, parameters = optimizer._pending.state, optimizer._pending.parameters
        warnings = [] if state is None else self._load_factor(state.get(FACTOR))
        rest = None if state is None else {name: tensor for name, tensor in state.items() if name != FACTOR}
        warnings += self._updater.load_state(rest, parameters)
        # Not before: when the state is refused, the next attempt must use it.
        optimizer._take_pending()
        for warning in warnings:
            logger.warning(warning)
        self._session.loss_scaling = self._updater.loss_scaling

    def _load_factor(self, factor: Tensor | None) -> list[str]:
        automatic = self._session.automatic
        if automatic is None:
            return [] if factor is None else [f"ignoring unexpected state {FACTOR}: the compiled program has none"]
        if factor is None:
            return [f"ignoring missing state {FACTOR}: the device keeps its value"]
        automatic.factor = float(factor)
        return []

    def bind(self) -> None:
        updater, automatic, optimizer = self._updater, self._session.automatic, self._optimisation.stateful

        def read() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            own = {} if automatic is None else {FACTOR: torch.tensor(automatic.factor)}
            return {**updater.read_state(), **own}, updater.parameters()

        if optimizer is not None:
            optimizer._bind(read)
