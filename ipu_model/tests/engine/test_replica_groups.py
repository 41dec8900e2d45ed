"""Which replicas share a value of a weight, and what of their gradients is summed.

Groups of k of N replicas (PopTorch's CommGroupType): consecutive ones are {0..k-1}, {k..2k-1}, ...; orthogonal ones
take every (N/k)-th replica.
"""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.compute.gradients import ReplicaGroups, reduce_in_groups

GROUPS = st.builds(
    lambda count, size, orthogonal: ReplicaGroups(count * size, size, orthogonal),
    st.integers(1, 5), st.integers(1, 5), st.booleans(),
)  # fmt: skip


@given(GROUPS)
def test_groups_are_those_of_the_definition(groups: ReplicaGroups) -> None:
    members = [[r for r in range(groups.replicas) if groups.of(r) == group] for group in range(groups.count)]
    size, count = groups.size, groups.count
    if groups.orthogonal:
        assert members == [list(range(first, groups.replicas, count)) for first in range(count)]
    else:
        assert members == [list(range(group * size, (group + 1) * size)) for group in range(count)]


@given(GROUPS, st.booleans(), st.randoms(use_true_random=False))
def test_a_mean_over_all_replicas_becomes_one_over_each_group(
    groups: ReplicaGroups, mean: bool, random: Random
) -> None:
    # Integers, so that float32 sums are exact.
    values = [torch.tensor([float(random.randint(-9, 9)), 1.0]) for _ in range(groups.replicas)]
    totals = [[value.clone(), value.clone()] for value in values]
    own, shared = reduce_in_groups(totals, ["own", "shared"], {"own": groups}, mean=mean)
    assert torch.equal(shared, torch.stack(values).sum(0))
    for group in range(groups.count):
        of_group = torch.stack([value for r, value in enumerate(values) if groups.of(r) == group])
        if mean:
            torch.testing.assert_close(own[group] / groups.replicas, of_group.mean(0))
        else:
            assert torch.equal(own[group], of_group.sum(0))
