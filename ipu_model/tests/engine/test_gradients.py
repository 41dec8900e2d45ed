"""Gradients of micro-batches and replicas: accumulated in fp32 or fp16, and reduced over all replicas or in groups."""

from __future__ import annotations

from random import Random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.compute.gradients import Accumulator, ReplicaGroups, reduce_in_groups

NUMBERS = st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=12)


def accumulated(values: list[float], **settings: bool) -> float:
    accumulator = Accumulator([True], **settings)
    for value in values:
        accumulator.add([torch.tensor([value])])
    return accumulator.totals[0].item()


class TestAccumulation:
    """Gradients of micro-batches, added up in fp32 or fp16."""

    @given(NUMBERS)
    def test_a_half_sum_rounds_after_every_addition(self, values) -> None:
        expected = np.float16(values[0])
        for value in values[1:]:
            expected = np.float16(np.float32(expected) + np.float32(value))
        assert accumulated(values, half=True) == float(expected)

    @given(NUMBERS)
    def test_a_running_mean_is_the_mean(self, values) -> None:
        assert np.isclose(accumulated(values, running=True), np.mean(values), rtol=1e-4, atol=1e-4)

    def test_a_gradient_that_is_not_fresh_is_copied_before_it_is_changed(self) -> None:
        shared = torch.ones(3)
        accumulator = Accumulator([False])
        accumulator.add([shared])
        accumulator.add([torch.ones(3)])
        assert torch.equal(shared, torch.ones(3))
        assert torch.equal(accumulator.totals[0], torch.full((3,), 2.0))

    def test_replicas_are_summed_weight_by_weight(self) -> None:
        totals = [[torch.tensor([1.0]), torch.tensor([10.0])], [torch.tensor([2.0]), torch.tensor([20.0])]]
        assert [t.item() for t in reduce_in_groups(totals, ["a", "b"], {}, mean=True)] == [3, 30]


GROUPS = st.builds(
    lambda count, size, orthogonal: ReplicaGroups(count * size, size, orthogonal),
    st.integers(1, 5), st.integers(1, 5), st.booleans(),
)  # fmt: skip


class TestReplicaGroups:
    """Groups of k of N replicas, as PopTorch's CommGroupType has them.

    Consecutive ones are {0..k-1}, {k..2k-1}, ...; orthogonal ones take every (N/k)-th replica.
    """

    @given(GROUPS)
    def test_groups_are_those_of_the_definition(self, groups: ReplicaGroups) -> None:
        members = [[r for r in range(groups.replicas) if groups.of(r) == group] for group in range(groups.count)]
        size, count = groups.size, groups.count
        if groups.orthogonal:
            assert members == [list(range(first, groups.replicas, count)) for first in range(count)]
        else:
            assert members == [list(range(group * size, (group + 1) * size)) for group in range(count)]

    @given(GROUPS, st.booleans(), st.randoms(use_true_random=False))
    def test_a_mean_over_all_replicas_becomes_one_over_each_group(
        self, groups: ReplicaGroups, mean: bool, random: Random
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
