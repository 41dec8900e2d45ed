"""Batch arithmetic: which rows of a host batch each micro-batch gets, and which results come back.

Symbols: D device iterations, A gradient accumulation, R replicas, G input group size, B micro-batch size.
Steps of one replica and call: S = D x A. Rows consumed by a call: B x D x A x (R / G).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Keep(str, Enum):
    ALL = "all"
    FINAL = "final"
    SUM = "sum"
    EVERY_N = "every_n"


@dataclass(frozen=True)
class ReplicaGroups:
    """`replicas` in groups of `size`: consecutive ones, or with `orthogonal` every (replicas / size)-th."""

    replicas: int
    size: int
    orthogonal: bool = False

    @property
    def count(self) -> int:
        return self.replicas // self.size

    def of(self, replica: int) -> int:
        return replica % self.count if self.orthogonal else replica // self.size


@dataclass(frozen=True)
class Batching:
    device_iterations: int = 1
    accumulation: int = 1
    replicas: int = 1
    input_group: int = 1
    orthogonal_groups: bool = False

    @property
    def steps(self) -> int:
        """Micro-batches that one replica runs in a call: D x A."""
        return self.device_iterations * self.accumulation

    @property
    def slices(self) -> int:
        """Number of equal slices a host batch is cut into: R / G distinct inputs for each step."""
        return self.steps * (self.replicas // self.input_group)

    def slice_index(self, step: int, replica: int) -> int:
        """Return the slice that `replica` reads in `step`, both from 0; rows are laid out `[D, A, R / G, B]`."""
        groups = ReplicaGroups(self.replicas, self.input_group, self.orthogonal_groups)
        return step * groups.count + groups.of(replica)


@dataclass(frozen=True)
class Returns:
    keep: Keep = Keep.FINAL
    period: int = 1

    def kept(self, step: int, steps: int) -> bool:
        """Whether the result of step `step` (from 0) of `steps` is part of what is returned."""
        if self.keep is Keep.FINAL:
            return step == steps - 1
        if self.keep is Keep.EVERY_N:
            return (step + 1) % self.period == 0
        return True

    def multiplier(self, batching: Batching) -> int:
        """Return by how much dimension 0 of an output grows: the micro-batch results that come back."""
        if self.keep in (Keep.FINAL, Keep.SUM):
            return batching.replicas
        return batching.steps // (self.period if self.keep is Keep.EVERY_N else 1) * batching.replicas
