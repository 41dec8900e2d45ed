"""`import horovod.torch as hvd`: the calls that PopTorch programs use; others refuse by name."""

from __future__ import annotations

from typing import Any

from popdist.horovod_calls import (
    Average,
    Max,
    Min,
    Sum,
    allgather,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    grouped_allreduce,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    refused_attribute,
    shutdown,
    size,
)

__all__ = [
    "Average", "Max", "Min", "Sum", "allgather", "allreduce", "barrier", "broadcast", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "grouped_allreduce", "init", "is_initialized", "join",
    "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return refused_attribute(name)
