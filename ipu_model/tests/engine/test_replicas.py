"""What replicas share and what each has of its own: accumulated and reduced gradients, streams of random numbers."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.compute.gradients import Accumulator, ReplicaGroups, reduce_in_groups
from ipu_model.compute.randomness import RandomStreams

NUMBERS = st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=12)


def accumulated(values: list[float], **settings: bool) -> float:
    accumulator = Accumulator([True], **settings)
    for value in values:
        accumulator.add([torch.tensor([value])])
    return accumulator.totals[0].item()


@given(NUMBERS)
def test_a_half_sum_rounds_after_every_addition_and_a_running_mean_is_the_mean(values: list[float]) -> None:
    expected = np.float16(values[0])
    for value in values[1:]:
        expected = np.float16(np.float32(expected) + np.float32(value))
    assert accumulated(values, half=True) == float(expected)
    assert np.isclose(accumulated(values, running=True), np.mean(values), rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_not_fresh_is_copied_before_it_is_changed() -> None:
    shared, accumulator = torch.ones(3), Accumulator([False])
    for gradient in (shared, torch.ones(3)):
        accumulator.add([gradient])
    assert torch.equal(shared, torch.ones(3))
    assert torch.equal(accumulator.totals[0], torch.full((3,), 2.0))


GROUPS = st.builds(
    lambda count, size, orthogonal: ReplicaGroups(count * size, size, orthogonal),
    st.integers(1, 5), st.integers(1, 5), st.booleans(),
)  # fmt: skip


@given(GROUPS)
def test_groups_are_those_of_the_definition(groups: ReplicaGroups) -> None:
    """Groups of k of N replicas, as PopTorch's CommGroupType has them.

    Consecutive ones are {0..k-1}, {k..2k-1}, ...; orthogonal ones take every (N/k)-th replica.
    """
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


# The device's random streams: apart from the host's, one for each replica, resumable.


def draw(streams: RandomStreams, replica: int = 0) -> list[float]:
    with streams.drawing(replica):
        return torch.rand(4).tolist()


def test_a_seed_gives_each_replica_numbers_of_its_own_also_in_another_process() -> None:
    streams, other_seed, second_process = RandomStreams(1, 4), RandomStreams(2, 4), RandomStreams(1, 2, first=2)
    first = [draw(streams, replica) for replica in range(4)]
    draws = [*first, draw(streams, 0), draw(other_seed, 0)]
    assert all(a != b for place, a in enumerate(draws) for b in draws[:place])
    assert [draw(second_process, 0), draw(second_process, 1)] == first[2:]
    second_process.restore([2])  # a state of one number is a seed
    assert draw(second_process, 0) == draw(other_seed, 2)


def test_the_hosts_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    draw(RandomStreams(1, 1))
    assert torch.equal(torch.rand(3), expected)


def test_a_restored_state_continues_where_it_was_saved() -> None:
    streams, other = RandomStreams(1, 2), RandomStreams(9, 2)
    draw(streams, 1)
    state = streams.state()
    assert state[0] == 1
    following = draw(streams, 1)
    other.restore(state)
    assert draw(other, 1) == following
    with pytest.raises(ValueError, match="expected 1 or"):
        streams.restore(RandomStreams(1, 1).state())
