"""Weights of which every group of replicas has its own value: who shares one, and how their gradients are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ipu_model.numerics.accumulation import reduce_replicas


@dataclass(frozen=True)
class ReplicaGroups:
    """`replicas` in groups of `size`: consecutive ones, or with `orthogonal` every (replicas / size)-th."""

    replicas: int
    size: int
    orthogonal: bool = False

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.replicas // self.size

    def of(self, replica: int) -> int:
        """Return the group of a replica."""
        return replica % self.count if self.orthogonal else replica // self.size


def reduce_in_groups(
    totals: Sequence[Sequence[Tensor]], names: Sequence[str], groups: Mapping[str, ReplicaGroups], *, mean: bool
) -> list[Tensor]:
    """Sum the accumulators `totals[replica][weight]` over replicas; those of grouped weights over each group only.

    A grouped weight's result has its groups as the leading dimension. For a `mean` over all replicas, which the
    weight update takes, it is multiplied by their number over that of a group.
    """
    grouped = {index: groups[name] for index, name in enumerate(names) if name in groups}
    own = {index: _by_group([total[index] for total in totals], kind, mean) for index, kind in grouped.items()}
    summed = reduce_replicas(totals)
    return [own.get(index, total) for index, total in enumerate(summed)]


def _by_group(gradients: Sequence[Tensor], groups: ReplicaGroups, mean: bool) -> Tensor:
    summed = torch.zeros(groups.count, *gradients[0].shape, dtype=gradients[0].dtype)
    for replica, gradient in enumerate(gradients):
        summed[groups.of(replica)] += gradient
    return summed.mul_(groups.count) if mean else summed
