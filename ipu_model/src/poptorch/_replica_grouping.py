"""Parameters of which every group of replicas trains its own slice: `executor.weight.replicaGrouping(...)`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ipu_model import errors
from ipu_model.capture.variables import slots_of
from ipu_model.numerics.replica_groups import ReplicaGroups
from ipu_model.optimiser.spec import OptimiserSpec
from poptorch._errors import createPoptorchError
from poptorch.enums import CommGroupType, VariableRetrievalMode

if TYPE_CHECKING:
    from poptorch.options import Options

Groupings = Mapping[str, ReplicaGroups]


def groups_of(
    name: str, parameter: Tensor, options: Options, kind: object, shards: object, mode: object
) -> ReplicaGroups:
    """Return the groups that the arguments of `replicaGrouping` ask for.

    Raises:
        AssertionError: arguments of another type.
        Error: a scalar, groups that do not divide the replicas, or a leading dimension that does not count them.
    """
    assert isinstance(kind, CommGroupType), f"replicaGrouping takes a poptorch.CommGroupType; got {kind!r}."
    assert isinstance(shards, int), f"shards is the number of replicas of a group, an int; got {shards!r}."
    assert isinstance(mode, VariableRetrievalMode), (
        f"replicaGrouping takes a poptorch.VariableRetrievalMode; got {mode!r}."
    )
    if parameter.dim() == 0:
        raise createPoptorchError(
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
        raise createPoptorchError(
            f"replicaGrouping() of parameter '{name}': {replicas} replicas do not divide into groups of {size}. Use a "
            "divisor of poptorch.Options().replicationFactor."
        )
    groups = ReplicaGroups(replicas, size, orthogonal=kind is CommGroupType.Orthogonal)
    if parameter.shape[0] != groups.count:
        raise createPoptorchError(
            f"replicaGrouping() of parameter '{name}': its leading dimension is {parameter.shape[0]}, but {replicas} "
            f"replicas in groups of {size} are {groups.count} groups. The leading dimension enumerates the groups."
        )
    return groups


def check_grouped(groupings: Groupings, module: nn.Module, options: Options, spec: OptimiserSpec | None) -> None:
    """Refuse grouped parameters where they are not carried out.

    Raises:
        Error: names what they cannot be combined with.
    """
    if not groupings:
        return
    names = ", ".join(f"'{name}'" for name in groupings)
    if options.Distributed.numProcesses > 1:
        raise errors.unsupported(
            f"replicaGrouping() of parameter {names} with several processes", "Run all replicas in one process."
        )
    if spec is not None and spec.family == "LAMB":
        raise errors.unsupported(
            f"replicaGrouping() of parameter {names} with LAMB", "Use an optimiser without norms of whole tensors."
        )
    if spec is not None and spec.max_grad_norm != math.inf:
        raise errors.unsupported(
            f"replicaGrouping() of parameter {names} with max_grad_norm", "Leave gradient clipping off."
        )
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
