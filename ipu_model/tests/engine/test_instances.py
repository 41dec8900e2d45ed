"""Replicas, inside a process and over instances: gradients that are combined, random streams, and the group.

The group has a thread for each instance here; real processes, and what else they do together: tests/popdist.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_model import instances
from ipu_model.batching import ReplicaGroups
from ipu_model.compute.gradients import Accumulator, reduce_in_groups
from ipu_model.compute.session import RandomStreams
from ipu_model.errors import Error
from ipu_model.instances import Group, HashStore, PrefixStore, note_end, wait_for_members

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


@given(GROUPS, st.booleans(), st.randoms(use_true_random=False))
def test_a_mean_becomes_one_over_each_group(groups: ReplicaGroups, mean: bool, random: Random) -> None:
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
        return torch.rand(4, generator=streams.generator).tolist()


def test_a_seed_gives_each_replica_numbers_of_its_own_also_in_another_process() -> None:
    streams, other_seed, second_process = RandomStreams(1, 4), RandomStreams(2, 4), RandomStreams(1, 2, first=2)
    first = [draw(streams, replica) for replica in range(4)]
    draws = [*first, draw(streams, 0), draw(other_seed, 0)]
    assert all(a != b for place, a in enumerate(draws) for b in draws[:place])
    assert [draw(second_process, 0), draw(second_process, 1)] == first[2:]
    second_process.restore([2])  # a state of one number is a seed
    assert draw(second_process, 0) == draw(other_seed, 2)


# The group of instances.

PATIENCE = timedelta(seconds=60)
SAME_NUMBER = "all instances must call the model the same number of times"


def member(store: Any, members: Any, rank: int, **more: Any) -> Group:
    return Group(store, members, rank, **{"timeout": PATIENCE, "address": "127.0.0.1", "grace": 0.0, **more})


def together(size: int, action: Callable[[Group], Any], **more: Any) -> list[Any]:
    """Return what `action` returns in each of `size` instances, or the message of the error it raises."""
    store = HashStore()

    def run(rank: int) -> Any:
        try:
            return action(member(store, range(size), rank, **more))
        except Error as error:
            return error.message

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@settings(max_examples=5)
@given(size=st.integers(1, 3), shapes=st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=4))
def test_sums_are_the_same_bits_everywhere_and_made_in_parts(size: int, shapes: list[list[int]]) -> None:
    parts = [[torch.randn(shape) for shape in shapes] for _ in range(size)]

    def action(group: Group) -> list[torch.Tensor]:
        own = [tensor.clone() for tensor in parts[group.rank]]
        group.sum_(own, "gradients")
        return own

    with patch.object(instances, "_CHUNK", 4):
        results = together(size, action)
    for result in results:
        torch.testing.assert_close(result, [sum(tensors) for tensors in zip(*parts)])
        assert all(torch.equal(a, b) for a, b in zip(result, results[0]))


def test_tensors_that_share_storage_and_strided_ones_are_summed_once() -> None:
    """Gradients of two weights may be one tensor."""

    def action(group: Group) -> list[Any]:
        shared = torch.full((2,), group.rank + 1.0)
        strided = torch.arange(6.0).reshape(2, 3).t() + group.rank
        group.sum_([shared, shared, strided], "gradients")
        return [shared.tolist(), strided.tolist()]

    assert together(2, action) == [[[3.0, 3.0], (2 * torch.arange(6.0).reshape(2, 3).t() + 1).tolist()]] * 2
    assert not dist.is_initialized(), "the default group is left alone"


# Those who end, and those who do not come.


def test_one_that_has_ended_is_told_to_the_others() -> None:
    def action(group: Group) -> str:
        group.barrier()
        if group.rank == 0:
            group.close()
            return "ended"
        with pytest.raises(Error) as first:
            group.sum_([torch.ones(2)], "gradients")
        with pytest.raises(Error) as second:
            group.barrier()
        assert first.value.message == second.value.message
        return first.value.message

    ended, told = together(2, action)
    assert ended == "ended"
    assert told.startswith("Instance 1 of 2 was about to sum gradients, but another instance has ended.")
    assert SAME_NUMBER in told


def test_one_that_does_not_come_is_waited_for_no_longer_than_the_timeout() -> None:
    held = []

    def action(group: Group) -> None:
        held.append(group)
        if group.rank == 1:
            group.barrier()

    told = together(2, action, timeout=timedelta(seconds=1))[1]
    assert "did not come within 0:00:01" in told
    assert SAME_NUMBER in told
    with pytest.raises(Error, match=r"did not come within 0:00:00\.1.*timed out waiting for instance 1"):
        member(HashStore(), [0, 1], 0, timeout=timedelta(seconds=0.1))


def test_one_that_a_launcher_notes_as_ended_without_joining_is_not_waited_for() -> None:
    """The launcher writes below all prefixes; it does not know in which room an instance waits."""
    store = HashStore()
    note_end(PrefixStore("a", PrefixStore("b", store)), 2)
    said = "Instance 0 of 2 was about to wait for all instances to join, but another instance has"
    with pytest.raises(Error, match=f"{said}.*instance 2 has ended without joining"):
        member(PrefixStore("room", store), [0, 2], 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait_for_members, store, [0, 1], 0, PATIENCE)
        note_end(store, 1)
        with pytest.raises(RuntimeError, match="instance 1 has ended without joining"):
            waiting.result()
    # One that came before it ended is there: a group that is made of some instances later finds out by itself.
    store.set("here/1", "")
    wait_for_members(store, [0, 1], 0, PATIENCE)


# Joining.


def environment(**more: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


@pytest.mark.parametrize(("rank", "place", "said"), [
    (0, {"MASTER_ADDR": ""}, "MASTER_ADDR is not set. Start .* with `poprun .* or with torchrun"),
    (0, {"MASTER_PORT": ""}, "MASTER_PORT is not set. Start .* with `poprun .* or with torchrun"),
    (0, {"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR and MASTER_PORT are not set"),
    *((0, {"MASTER_PORT": p}, f"MASTER_PORT is '{p}', which is no port") for p in ("http", "0", "65536", "-1")),
    (0, {"WORLD_SIZE": "4"}, r"there are 2 processes, the launcher has started 4 \(WORLD_SIZE\)"),
    (2, {}, r"Instance 2 of 2: indices go from 0 to 1\."),
])  # fmt: skip
def test_what_is_wrong_with_the_place_or_the_index_is_named(rank: int, place: dict[str, str], said: str) -> None:
    with pytest.raises(Error, match=said):
        instances.join(rank, 2, environment(**place))


@pytest.mark.parametrize(("rank", "said"), [
    (0, r"127\.0\.0\.1, port {port}: another program uses this port"),
    (1, "Instance 1 cannot reach the place where instances meet"),
])  # fmt: skip
def test_a_port_that_is_taken_or_empty_is_named(rank: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        port = str(other.getsockname()[1])
        if rank == 0:
            other.listen()
        for name, value in environment(MASTER_PORT=port).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Error, match=said.format(port=port)):
            instances.join(rank, 2, environment(MASTER_PORT=port), timeout=timedelta(seconds=1))


def test_a_process_is_one_instance_of_one_run() -> None:
    alone = instances.world(0, 1)
    try:
        assert instances.joined() is alone is instances.world(0, 1)
        with pytest.raises(Error, match="has joined the run as instance 0 of 1 and cannot be instance 1 of 2"):
            instances.world(1, 2)
    finally:
        instances.leave()
    assert instances.joined() is None
