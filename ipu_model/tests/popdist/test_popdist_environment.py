"""What an instance sees of its run, and what PopDist's functions make of it (data reference, sections 5.1 and 7.1)."""

from __future__ import annotations

import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

import popdist
import poptorch
from popdist.environment import NAMES, OFFSET, TOTAL, Place, place, variables_of
from popdist.topology import divide

SMALL = st.integers(1, 5)

# The example of section 7.1: 8 replicas, 4 instances, 2 IPUs each, instance 3.
EXAMPLE = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_NUM_IPUS_PER_REPLICA": "2",
    "POPDIST_REPLICA_INDEX_OFFSET": "6",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_LOCAL_INSTANCE_INDEX": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
}


@pytest.fixture(autouse=True)
def no_poprun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXAMPLE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EXAMPLE.items():
        monkeypatch.setenv(name, value)


def test_poprun_sets_what_the_reference_shows() -> None:
    topology = divide(["localhost"], 4, 8, 2)
    assert variables_of(topology, topology.instance(3)) == EXAMPLE


@given(hosts=SMALL, per_host=SMALL, per_instance=SMALL, ipus=SMALL)
def test_an_instance_reads_back_where_it_stands(hosts: int, per_host: int, per_instance: int, ipus: int) -> None:
    names = [f"host{index}" for index in range(hosts)]
    topology = divide(names, hosts * per_host, hosts * per_host * per_instance, ipus)
    for instance in topology.instances:
        found = place(variables_of(topology, instance))
        assert (found.instances, found.instance) == (topology.num_instances, instance.index)
        assert (found.total_replicas, found.local_replicas) == (topology.num_replicas, per_instance)
        assert (found.ipus_per_replica, found.local_instance) == (ipus, instance.local_index)


@pytest.mark.usefixtures("example")
class TestUnderPoprun:
    def test_functions_return_the_example_of_the_reference(self) -> None:
        assert popdist.isPopdistEnvSet()
        assert popdist.getNumTotalReplicas() == 8
        assert popdist.getNumLocalReplicas() == 2
        assert popdist.getNumInstances() == 4
        assert popdist.getInstanceIndex() == 3
        assert popdist.getLocalInstanceIndex() == 3
        assert popdist.getReplicaIndexOffset() == 6
        assert popdist.getNumIpusPerReplica() == 2

    def test_a_process_that_an_instance_started_does_not_join_in_its_place(self) -> None:
        # None of the other three instances runs: joining them would fail, or wait for ever.
        loader = multiprocessing.get_context("spawn").Process(target=popdist.init)
        loader.start()
        loader.join(60)
        ended_with = loader.exitcode
        loader.kill()
        assert ended_with == 0

    def test_the_device_is_the_first_ipu_that_instances_before_leave(self) -> None:
        assert popdist.getDeviceId() == 3 * 2 * 2
        assert popdist.getDeviceId(4) == 3 * 2 * 4

    def test_the_number_of_ipus_can_be_checked(self) -> None:
        assert popdist.checkNumIpusPerReplica(2)
        assert not popdist.checkNumIpusPerReplica(1)

    def test_work_is_left_to_the_instances_named(self) -> None:
        assert popdist.execute_on_instances({0, 1}, lambda: "done") is None
        assert popdist.execute_on_instances({3}, lambda a, b: a + b, 1, b=2) == 3

    @pytest.mark.parametrize("instances", [{4}, {-1, 0}, set()])
    def test_work_cannot_be_given_to_instances_that_are_not_there(self, instances: set[int]) -> None:
        with pytest.raises(poptorch.Error, match="instances 0 to 3"):
            popdist.execute_on_instances(instances, lambda: None)


class TestWithoutPoprun:
    def test_a_program_is_one_instance_with_one_replica(self) -> None:
        assert not popdist.isPopdistEnvSet()
        assert place() == Place(1, 1, 1, 0, 0)
        assert (popdist.getNumInstances(), popdist.getInstanceIndex(), popdist.getDeviceId()) == (1, 0, 0)
        assert popdist.checkNumIpusPerReplica(7)

    def test_init_is_refused_but_waiting_and_working_alone_are_not(self) -> None:
        with pytest.raises(poptorch.Error, match=r"not started by poprun.*isPopdistEnvSet"):
            popdist.init()
        popdist.initializeBackend()
        assert popdist.isBackendInitialized()
        popdist.synchronize()
        assert popdist.execute_on_instances({0}, lambda: "done") == "done"
        popdist.finalizeBackend()
        assert not popdist.isBackendInitialized()


class TestBrokenEnvironment:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_part_of_it_is_refused_with_what_is_missing(self, name: str) -> None:
        half = {key: EXAMPLE[key] for key in NAMES if key != name}
        with pytest.raises(poptorch.Error, match=f"Only part of poprun's environment.*{name} is not"):
            place(half)

    @pytest.mark.parametrize(("name", "value"), [(TOTAL, "eight"), (TOTAL, "0"), (OFFSET, "-2"), (OFFSET, "")])
    def test_numbers_are_numbers(self, name: str, value: str) -> None:
        with pytest.raises(poptorch.Error, match=f"{name}='{value}' is not a whole number from"):
            place({**EXAMPLE, name: value})

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({TOTAL: "7"}, "same number of replicas"),
            ({"POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "0"}, "same number of replicas"),
            ({OFFSET: "3"}, "not the first replica of any instance"),
            ({OFFSET: "8"}, "not the first replica of any instance"),
        ],
    )
    def test_contradictions_are_named(self, change: dict[str, str], said: str) -> None:
        with pytest.raises(poptorch.Error, match=said):
            place({**EXAMPLE, **change})
