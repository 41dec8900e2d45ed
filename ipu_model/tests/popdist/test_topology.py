"""Replicas are divided evenly over instances, and instances over hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from popdist.topology import as_table, divide

SMALL = st.integers(1, 6)


@given(hosts=SMALL, per_host=SMALL, per_instance=SMALL)
def test_each_replica_is_run_exactly_once_and_in_order(hosts: int, per_host: int, per_instance: int) -> None:
    names = [f"host{index}" for index in range(hosts)]
    topology = divide(names, hosts * per_host, hosts * per_host * per_instance)
    ranges = [range(i.first_replica, i.first_replica + i.replicas) for i in topology.instances]
    assert [replica for run in ranges for replica in run] == list(range(topology.num_replicas))
    assert [i.index for i in topology.instances] == list(range(topology.num_instances))


@given(hosts=SMALL, per_host=SMALL)
def test_each_host_runs_the_same_number_of_instances_one_host_after_the_other(hosts: int, per_host: int) -> None:
    names = [f"host{index}" for index in range(hosts)]
    topology = divide(names, hosts * per_host, hosts * per_host)
    assert [i.host for i in topology.instances] == [name for name in names for _ in range(per_host)]
    assert [i.local_index for i in topology.instances] == list(range(per_host)) * hosts
    assert [i for host in range(hosts) for i in topology.on_host(host)] == list(topology.instances)


@given(instances=st.integers(1, 9), replicas=st.integers(1, 40))
def test_counts_that_do_not_divide_are_refused_with_the_nearest_that_do(instances: int, replicas: int) -> None:
    if replicas % instances == 0:
        assert divide(["a"], instances, replicas).num_replicas == replicas
        return
    with pytest.raises(poptorch.Error, match=f"must be a multiple of {instances}") as refusal:
        divide(["a"], instances, replicas)
    nearest = [int(word) for word in refusal.value.message.rsplit(":", 1)[1].rstrip(".").split(" or ")]
    assert all(divide(["a"], instances, number).num_replicas == number for number in nearest)
    assert min(abs(number - replicas) for number in nearest) < instances


def test_instances_must_divide_over_hosts() -> None:
    with pytest.raises(poptorch.Error, match=r"--num-instances 3: .*2 hosts.*Nearest that works: 2 or 4\."):
        divide(["a", "b"], 3, 3)
    with pytest.raises(poptorch.Error, match=r"--num-instances 1: .*Nearest that works: 2\."):
        divide(["a", "b"], 1, 1)


@pytest.mark.parametrize("option", ["--num-instances", "--num-replicas", "--ipus-per-replica"])
def test_there_must_be_at_least_one_of_each(option: str) -> None:
    counts = {name: 0 if name == option else 1 for name in ("--num-instances", "--num-replicas", "--ipus-per-replica")}
    with pytest.raises(poptorch.Error, match=f"{option} 0: there must be at least 1"):
        divide(["a"], *counts.values())


def test_the_table_has_a_row_for_each_instance() -> None:
    assert as_table(divide(["a", "longer"], 4, 8, 2)).splitlines() == [
        "host    instance  replicas  IPUs per replica",
        "------  --------  --------  ----------------",
        "a       0         0 to 1    2",
        "a       1         2 to 3    2",
        "longer  2         4 to 5    2",
        "longer  3         6 to 7    2",
    ]


def test_messages_name_an_instance_with_its_host_and_replicas() -> None:
    assert divide(["a"], 1, 1).instance(0).description == "instance 0 (host a, replica 0)"
    assert divide(["a", "b"], 2, 6).instance(1).description == "instance 1 (host b, replicas 3 to 5)"
