"""The group of instances, with a thread for each of them; real processes: tests/popdist."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_model import instances
from ipu_model.errors import Error
from ipu_model.instances import Group, HashStore, Operation, PrefixStore, note_end, wait_for_members

PATIENCE = timedelta(seconds=60)


def together(size: int, action: Callable[[Group], Any], **more: Any) -> list[Any]:
    """Return what `action` returns in each of `size` instances, or the error it raises."""
    store = HashStore()

    def run(rank: int) -> Any:
        try:
            options = {"timeout": PATIENCE, "address": "127.0.0.1", "grace": 0.0, **more}
            return action(Group(store, range(size), rank, **options))
        except Error as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


class TestCollectives:
    @settings(max_examples=5)
    @given(size=st.integers(1, 3), shapes=st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=4))
    def test_sums_are_the_same_bits_everywhere(self, size: int, shapes: list[list[int]]) -> None:
        parts = [[torch.randn(shape) for shape in shapes] for _ in range(size)]
        expected = [sum(part[i] for part in parts) for i in range(len(shapes))]

        def action(group: Group) -> list[torch.Tensor]:
            own = [tensor.clone() for tensor in parts[group.rank]]
            group.sum_(own, "gradients")
            return own

        results = together(size, action)
        for result in results:
            torch.testing.assert_close(result, expected)
            assert all(torch.equal(a, b) for a, b in zip(result, results[0]))

    def test_tensors_that_share_storage_and_strided_ones_are_summed_once(self) -> None:
        """Gradients of two weights may be one tensor."""

        def action(group: Group) -> list[Any]:
            shared = torch.full((2,), group.rank + 1.0)
            strided = torch.arange(6.0).reshape(2, 3).t() + group.rank
            group.sum_([shared, shared, strided], "gradients")
            return [shared.tolist(), strided.tolist()]

        expected = [[3.0, 3.0], (2 * torch.arange(6.0).reshape(2, 3).t() + 1).tolist()]
        assert together(2, action) == [expected, expected]

    def test_many_elements_are_summed_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(instances, "_CHUNK", 4)

        def action(group: Group) -> list[list[float]]:
            tensors = [torch.full((n,), float(group.rank)) for n in (3, 2, 9, 1)]
            group.sum_(tensors, "gradients")
            return [tensor.tolist() for tensor in tensors]

        assert together(2, action) == [[[1.0] * n for n in (3, 2, 9, 1)]] * 2

    def test_values_are_reduced_gathered_and_broadcast(self) -> None:
        def action(group: Group) -> list[Any]:
            own = torch.tensor([group.rank, -group.rank])
            return [
                *(group.reduced(own, operation).tolist() for operation in Operation),
                [part.tolist() for part in group.gathered(own)],
                group.broadcast(own, 2).tolist(),
                group.gathered_objects("x" * group.rank),
                own.tolist(),
            ]

        expected = [[3, -3], [0, -2], [2, 0], [[0, 0], [1, -1], [2, -2]], [2, -2], ["", "x", "xx"]]
        assert together(3, action) == [[*expected, [rank, -rank]] for rank in range(3)]

    def test_a_part_of_the_group_works_on_its_own(self) -> None:
        def action(group: Group) -> Any:
            if group.rank == 1:
                return None
            part = group.only([2, 0])
            assert part is group.only([0, 2])
            return part.members, part.broadcast(torch.tensor([group.rank]), 2).item()

        assert together(3, action) == [((0, 2), 2), None, ((0, 2), 2)]

    def test_one_instance_alone_waits_for_nobody(self) -> None:
        group = Group(HashStore(), [0], 0)
        group.barrier()
        own = torch.ones(2)
        group.sum_([own], "gradients")
        assert own.tolist() == group.reduced(own, Operation.MAX).tolist() == [1.0, 1.0]
        assert group.gathered_objects({"a": 1}) == [{"a": 1}]


class TestEnds:
    def test_one_that_has_ended_is_told_to_the_others(self) -> None:
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
        assert "all instances must call the model the same number of times" in told

    def test_one_that_has_left_cannot_go_on(self) -> None:
        def action(group: Group) -> str:
            part = group.only([group.rank])
            group.barrier()
            group.close()
            with pytest.raises(Error, match=rf"Instance {group.rank} has left the others"):
                group.barrier()
            assert part._broken
            return "left"

        assert together(2, action) == ["left", "left"]

    def test_one_that_does_not_come_is_waited_for_no_longer_than_the_timeout(self) -> None:
        held = []

        def action(group: Group) -> str:
            held.append(group)
            if group.rank == 0:
                return "elsewhere"
            with pytest.raises(Error) as refusal:
                group.barrier()
            return refusal.value.message

        told = together(2, action, timeout=timedelta(seconds=1))[1]
        assert "did not come within 0:00:01" in told
        assert "all instances must call the model the same number of times" in told


class TestComing:
    """A launcher notes which instances have ended; without one, those who do not come are waited for."""

    def test_one_that_has_ended_without_joining_is_not_waited_for(self) -> None:
        store = HashStore()
        note_end(store, 2)
        with pytest.raises(Error) as refusal:
            # The place where instances meet has a room for each group.
            Group(PrefixStore("room", store), [0, 2], 0, timeout=PATIENCE, address="127.0.0.1", grace=0.0)
        told = refusal.value.message
        assert told.startswith("Instance 0 of 2 was about to wait for all instances to join, but another instance has")
        assert "instance 2 has ended without joining" in told

    def test_one_that_ends_while_others_wait_is_noticed(self) -> None:
        store = HashStore()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(wait_for_members, store, [0, 1], 0, PATIENCE)
            note_end(store, 1)
            with pytest.raises(RuntimeError, match="instance 1 has ended without joining"):
                waiting.result()

    def test_one_that_does_not_come_is_waited_for_no_longer_than_the_timeout(self) -> None:
        with pytest.raises(Error, match=r"did not come within 0:00:00\.1.*timed out waiting for instance 1"):
            Group(HashStore(), [0, 1], 0, timeout=timedelta(seconds=0.1), address="127.0.0.1", grace=0.0)

    def test_one_that_came_before_it_ended_is_there(self) -> None:
        """A group that is made of some instances later finds out by itself."""
        store = HashStore()
        for member in (0, 1):
            note_end(store, member)
            store.set(f"here/{member}", "")
        wait_for_members(store, [0, 1], 0, PATIENCE)


def environment(**more: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


class TestJoining:
    @pytest.mark.parametrize(
        ("rank", "place", "said"),
        [
            (0, {"MASTER_ADDR": ""}, "MASTER_ADDR is not set. Start .* with `poprun .* or with torchrun"),
            (0, {"MASTER_PORT": ""}, "MASTER_PORT is not set. Start .* with `poprun .* or with torchrun"),
            (0, {"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR and MASTER_PORT are not set"),
            *((0, {"MASTER_PORT": p}, f"MASTER_PORT is '{p}', which is no port") for p in ("http", "0", "65536", "-1")),
            (0, {"WORLD_SIZE": "4"}, r"there are 2 processes, the launcher has started 4 \(WORLD_SIZE\)"),
            (2, {}, r"Instance 2 of 2: indices go from 0 to 1\."),
        ],
    )
    def test_what_is_wrong_with_the_place_or_the_index_is_named(
        self, rank: int, place: dict[str, str], said: str
    ) -> None:
        with pytest.raises(Error, match=said):
            instances.join(rank, 2, environment(**place))

    def test_a_port_that_is_taken_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as other:
            other.bind(("0.0.0.0", 0))
            other.listen()
            port = str(other.getsockname()[1])
            monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
            monkeypatch.setenv("MASTER_PORT", port)
            with pytest.raises(Error, match=rf"127\.0\.0\.1, port {port}: another program uses this port"):
                instances.join(0, 2, environment(MASTER_PORT=port))

    def test_a_place_where_nobody_is_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            port = str(other.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(Error, match="Instance 1 cannot reach the place where instances meet"):
            instances.join(1, 2, environment(MASTER_PORT=port), timeout=timedelta(seconds=1))

    def test_a_process_is_one_instance_of_one_run(self) -> None:
        alone = instances.world(0, 1)
        try:
            assert instances.joined() is alone is instances.world(0, 1)
            with pytest.raises(Error, match="has joined the run as instance 0 of 1 and cannot be instance 1 of 2"):
                instances.world(1, 2)
        finally:
            instances.leave()
        assert instances.joined() is None


class TestNamesOfTorchDistributed:
    """Names of torch.distributed below its public API: if one of these fails, look at instances.py again."""

    def test_the_default_group_is_left_alone(self) -> None:
        assert together(2, lambda group: dist.is_initialized()) == [False, False]

    def test_without_an_address_gloo_asks_the_machine(self) -> None:
        assert together(2, lambda group: group.size, address=None) == [2, 2]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
    def test_gloo_sums_the_types_that_programs_reduce(self, dtype: torch.dtype) -> None:
        ones = torch.ones(3, dtype=dtype)
        sums = together(2, lambda group: group.reduced(ones, Operation.SUM).tolist())
        assert sums == [[2.0] * 3] * 2

    def test_a_server_is_shared_inside_a_process_and_a_taken_port_says_so(self) -> None:
        """poprun's agents keep the store open that torch's launcher opens again; the error's text is looked for."""
        first = instances.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        again = instances.TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False, multi_tenant=True)
        assert again.port == first.port
        with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
            instances.TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False)

    def test_the_end_of_an_instance_is_noted_below_all_prefixes(self) -> None:
        """The launcher writes below; it does not know in which room an instance waits."""
        below = HashStore()
        note_end(PrefixStore("a", PrefixStore("b", below)), 1)
        assert below.check(["popdist/ended/1"])
