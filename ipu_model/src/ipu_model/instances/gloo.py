"""Every name of `torch.distributed` below its public API that the group of instances needs; each has a canary test.

A backend of our own leaves the default process group to the program, which may call `init_process_group` itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

__all__ = [
    "HashStore", "PrefixStore", "Store", "TCPStore", "broadcast_", "connect", "gather", "reduce_", "root_of",
    "store_from_environment", "wait_for_all",
]  # fmt: skip


def connect(store: Store, rank: int, size: int, timeout: timedelta, address: str | None) -> Any:
    """Return gloo's backend for process `rank` of `size`; it waits for the others.

    `address` is the one of this host that the others reach it by; without it gloo asks the machine's name.
    Raises `RuntimeError` if the others do not come within `timeout`.
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [
        dist.ProcessGroupGloo.create_device(hostname=address)
        if address
        else dist.ProcessGroupGloo.create_default_device()
    ]
    return dist.ProcessGroupGloo(store, rank, size, options)


def reduce_(backend: Any, tensor: Tensor, operation: str) -> None:
    """Reduce a contiguous tensor in place over all processes; `operation` is `SUM`, `MIN` or `MAX`."""
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, operation)
    backend.allreduce([tensor], options).wait()


def gather(backend: Any, tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, which have the same shape."""
    gathered = [torch.empty_like(tensor) for _ in range(backend.size())]
    backend.allgather([gathered], [tensor]).wait()
    return gathered


def broadcast_(backend: Any, tensor: Tensor, root: int) -> None:
    """Overwrite a contiguous tensor with that of process `root`."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    backend.broadcast([tensor], options).wait()


def wait_for_all(backend: Any) -> None:
    """Return when all processes have called this."""
    backend.barrier().wait()


def root_of(store: Store) -> Store:
    """Return the store in which `store` only puts something in front of the keys."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def store_from_environment(rank: int, size: int, timeout: timedelta) -> Store:
    """Return the key-value store at `MASTER_ADDR`, `MASTER_PORT`: process 0 runs it unless a launcher does.

    Raises `RuntimeError` (`DistNetworkError` among them) if it cannot be started or reached.
    """
    store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))  # type: ignore[attr-defined]
    return cast(Store, store)
