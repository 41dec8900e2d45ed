"""`import horovod.torch as hvd`: the calls that PopTorch programs use, on host tensors, among the instances of the run.

Others refuse by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ipu_model.errors import Error, unsupported
from ipu_model.instances import Operation
from popdist import environment
from poptorch._backend.support import status_of
from poptorch._impl import refusal

__all__ = [
    "Average", "Max", "Min", "Sum", "allgather", "allreduce", "barrier", "broadcast", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "grouped_allreduce", "init", "is_initialized", "join",
    "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip


ReduceOp = Enum("ReduceOp", ["Average", "Sum", "Min", "Max"])
Average, Sum, Min, Max = ReduceOp
_OPERATIONS = {Average: Operation.SUM, Sum: Operation.SUM, Min: Operation.MIN, Max: Operation.MAX}
_initialised: list[bool] = []


def init() -> None:
    environment.initializeBackend()
    _initialised[:] = [True]


def shutdown() -> None:
    """End the use of Horovod's calls; PopTorch goes on using the connection."""
    _initialised.clear()


def is_initialized() -> bool:
    return bool(_initialised)


def rank() -> int:
    return _place().instance


def size() -> int:
    return _place().instances


def local_rank() -> int:
    return _place().local_instance


def local_size() -> int:
    _place()
    return environment.instances_on_this_host()


def allreduce(
    tensor: Tensor, average: bool | None = None, name: str | None = None, *, op: ReduceOp | None = None
) -> Tensor:
    """Return the average (the default), sum, smallest or largest of all ranks' tensors; averages of integers floor."""
    _place()
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Sum if average is False else Average
    if op not in _OPERATIONS:
        raise unsupported(f"horovod.torch reduction {op!r}", "Use Average, Sum, Min or Max.")
    group = environment.group()
    result = group.reduced(tensor, _OPERATIONS[op], f"the tensors of allreduce({name or ''})")
    if op is not Average:
        return result
    return result.div_(group.size) if result.is_floating_point() else result.floor_divide_(group.size)


def grouped_allreduce(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, *, op: ReduceOp | None = None
) -> list[Tensor]:
    """Return `allreduce` of each tensor; their types may differ."""
    return [allreduce(tensor, average, name, op=op) for tensor in tensors]


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """Return all ranks' tensors, one after the other along dimension 0, which may differ between ranks."""
    _place()
    parts = environment.group().gathered_objects(tensor.detach().clone(), f"the tensors of allgather({name or ''})")
    shapes = [tuple(part.shape) for part in parts]
    if () in shapes or len({shape[1:] for shape in shapes}) > 1:
        raise Error(
            f"allgather joins along dimension 0, and the shapes of the ranks are {', '.join(map(str, shapes))}: all "
            "other dimensions must be equal, and there must be at least one. reshape(1) turns a number into a vector."
        )
    return torch.cat(parts)


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Return the tensor of rank `root_rank`."""
    _check_root(root_rank)
    return environment.group().broadcast(tensor, root_rank, f"the tensors of broadcast({name or ''})")


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int) -> None:
    """Overwrite the tensors of a state dict, or of named parameters, with those of rank `root_rank`."""
    _check_root(root_rank)
    named = params.items() if isinstance(params, Mapping) else params
    with torch.no_grad():
        for name, value in named:
            if isinstance(value, Tensor):
                value.copy_(environment.group().broadcast(value, root_rank, name))


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of rank `root_rank`, which can be pickled."""
    _check_root(root_rank)
    group = environment.group()
    own = obj if group.members[group.rank] == root_rank else None
    return group.gathered_objects(own, name or "objects")[group.members.index(root_rank)]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict(), root_rank, "the optimiser's state"))


def barrier() -> None:
    _place()
    environment.group().barrier()


def join() -> int:
    """Return when all ranks have called this; the result is the last rank.

    Ranks that are still in other collectives are not served meanwhile, as Horovod would.
    """
    barrier()
    return size() - 1


def __getattr__(name: str) -> Any:
    entry = status_of(f"horovod.torch.{name}")
    if entry is None or entry.status != "refused":
        raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
    return refusal(f"horovod.torch.{name}", entry.text)


def _place() -> environment.Place:
    if not _initialised:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return environment.place()


def _check_root(root: int) -> None:
    _place()
    members = environment.group().members
    if root not in members:
        raise Error(f"root_rank {root}: the ranks here are {', '.join(map(str, members))}.")
