"""The host's copy of a model's weights: which tensors they are, and which replicas share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model import errors
from ipu_model.capture.graph import Graph
from ipu_model.capture.variables import slots_of
from ipu_model.compute.gradients import ReplicaGroups
from ipu_model.optimiser import OptimiserSpec
from ipu_model.step import Variable
from poptorch._options_impl import check_type
from poptorch.enums import CommGroupType, VariableRetrievalMode
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
                raise errors.Error(
                    f"'{variable.name}' is on the device 'meta' and has no data. Give the model data before you call "
                    "or compile it: model.to_empty(device='cpu') and then load_state_dict(state), or "
                    "load_state_dict(state, assign=True)."
                )
            groups = self.groupings.get(variable.name)
            slices = () if groups is None else (groups.count,)
            shape = (*slices, *graph.spec(variable.tensor).shape)
            if tuple(tensor.shape) != shape:
                raise errors.Error(
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
                    torch.Tensor.copy_(registered[name], value)

    def _registered(self) -> dict[str, Tensor]:
        # Plain tensors that share the storage of the registered ones.
        with torch._C.DisableTorchFunctionSubclass():
            return {name: torch.Tensor.detach(slot.tensor) for slot in slots_of(self._module) for name in slot.names}


Groupings = Mapping[str, ReplicaGroups]


def groups_of(name: str, parameter: Tensor, options: Options, kind: Any, shards: Any, mode: Any) -> ReplicaGroups:
    """Return the groups that the arguments of `replicaGrouping` ask for, whose types and values are checked."""
    check_type("replicaGrouping", kind, CommGroupType)
    is_int = isinstance(shards, int)
    errors.require(is_int, f"shards is the number of replicas of a group, an int; got {shards!r}.")
    check_type("replicaGrouping", mode, VariableRetrievalMode)
    if parameter.dim() == 0:
        raise errors.Error(
            f"Scalars cannot be passed as per-replica weight values: give '{name}' a leading dimension, one element "
            "for each group of replicas."
        )
    if not parameter.is_floating_point():
        raise errors.unsupported(
            f"replicaGrouping() of parameter '{name}' of type {parameter.dtype}", "Use a floating-point parameter."
        )
    replicas = options.replication_factor
    size = {CommGroupType.All: replicas, CommGroupType.NoGrouping: 1}.get(kind, shards)
    if size < 1 or replicas % size:
        raise errors.Error(
            f"replicaGrouping() of parameter '{name}': {replicas} replicas do not divide into groups of {size}. Use a "
            "divisor of poptorch.Options().replicationFactor."
        )
    groups = ReplicaGroups(replicas, size, orthogonal=kind is CommGroupType.Orthogonal)
    if parameter.shape[0] != groups.count:
        raise errors.Error(
            f"replicaGrouping() of parameter '{name}': its leading dimension is {parameter.shape[0]}, but {replicas} "
            f"replicas in groups of {size} are {groups.count} groups. The leading dimension enumerates the groups."
        )
    return groups


def check_grouped(groupings: Groupings, module: nn.Module, options: Options, spec: OptimiserSpec | None) -> None:
    if not groupings:
        return
    grouped = "replicaGrouping() of parameter " + ", ".join(f"'{name}'" for name in groupings)
    if options.Distributed.numProcesses > 1:
        raise errors.unsupported(f"{grouped} with several processes", "Run all replicas in one process.")
    if spec is not None and spec.family == "LAMB":
        raise errors.unsupported(f"{grouped} with LAMB", "Use an optimiser without norms of whole tensors.")
    if spec is not None and spec.max_grad_norm != math.inf:
        raise errors.unsupported(f"{grouped} with max_grad_norm", "Leave gradient clipping off.")
    tied = [slot.names for slot in slots_of(module) if len(slot.names) > 1 and set(slot.names) & set(groupings)]
    if tied:
        raise errors.unsupported(
            f"replicaGrouping() of a parameter under several names ({', '.join(tied[0])})", "Register it once."
        )


@contextmanager
def one_slice_each(module: nn.Module, groupings: Groupings) -> Iterator[None]:
    """Let `module` hold one group's slice of its grouped parameters, which is what forward sees of them."""
    registry = object.__getattribute__(module, "_parameters")
    whole = {name: registry[name] for name in groupings}
    with torch._C.DisableTorchFunctionSubclass():
        for name, parameter in whole.items():
            sliced = torch.Tensor.detach(parameter)[0]
            registry[name] = nn.Parameter(sliced, requires_grad=torch.Tensor.requires_grad.__get__(parameter))  # type: ignore[attr-defined]  # a getter
    try:
        yield
    finally:
        registry.update(whole)


class ParameterView:
    """The value of `executor.weight`: it reads and writes attributes of the parameter (`.data`, `.shape`, ...).

    It is not a tensor itself: pass `executor.model.<name>` to torch functions. `group` is called with the arguments of
    `replicaGrouping`.
    """

    def __init__(self, parameter: nn.Parameter, group: Callable[[object, object, object], None]) -> None:
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
