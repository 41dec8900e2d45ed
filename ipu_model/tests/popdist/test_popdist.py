"""What an instance sees of its run, PopDist's functions and its options (data reference, sections 5 and 7.1)."""

from __future__ import annotations

import copy
import multiprocessing
import re
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import popdist
import popdist.poptorch
import poptorch
from popdist.environment import NAMES, OFFSET, TOTAL, UNIFORM, Place, divide, place, variables_of

SMALL = st.integers(1, 4)  # at most 256 IPUs

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
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXAMPLE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def under_poprun(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EXAMPLE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["poprun", "alone"])
def by_poprun(request: pytest.FixtureRequest) -> bool:
    if request.param == "poprun":
        request.getfixturevalue("under_poprun")
    return bool(request.param == "poprun")


@given(hosts=SMALL, per_host=SMALL, per_instance=SMALL, ipus=SMALL)
def test_an_instance_reads_back_where_it_stands(hosts: int, per_host: int, per_instance: int, ipus: int) -> None:
    names = [f"host{index}" for index in range(hosts)]
    topology = divide(names, hosts * per_host, hosts * per_host * per_instance, ipus)
    for instance in topology.instances:
        found = place(variables_of(topology, instance))
        assert (found.instances, found.instance) == (topology.num_instances, instance.index)
        assert (found.total_replicas, found.local_replicas) == (topology.num_replicas, per_instance)
        assert (found.ipus_per_replica, found.local_instance) == (ipus, instance.local_index)


class TestFunctions:
    @pytest.mark.usefixtures("under_poprun")
    def test_they_return_the_example_of_the_reference(self) -> None:
        topology = divide(["localhost"], 4, 8, 2)
        assert variables_of(topology, topology.instance(3)) == EXAMPLE
        assert popdist.isPopdistEnvSet()
        assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (8, 2)
        assert (popdist.getNumInstances(), popdist.getInstanceIndex(), popdist.getLocalInstanceIndex()) == (4, 3, 3)
        assert (popdist.getReplicaIndexOffset(), popdist.getNumIpusPerReplica()) == (6, 2)
        # The device is the first IPU that instances before leave.
        assert (popdist.getDeviceId(), popdist.getDeviceId(4)) == (3 * 2 * 2, 3 * 2 * 4)
        assert [popdist.checkNumIpusPerReplica(n) for n in (1, 2)] == [False, True]

    @pytest.mark.usefixtures("under_poprun")
    def test_a_process_that_an_instance_started_does_not_join_in_its_place(self) -> None:
        # None of the other three instances runs: joining them would fail, or wait for ever.
        loader = multiprocessing.get_context("spawn").Process(target=popdist.init)
        loader.start()
        loader.join(60)
        ended_with = loader.exitcode
        loader.kill()
        assert ended_with == 0

    @pytest.mark.usefixtures("under_poprun")
    def test_work_is_left_to_the_instances_named(self) -> None:
        assert popdist.execute_on_instances({0, 1}, lambda: "done") is None
        assert popdist.execute_on_instances({3}, lambda a, b: a + b, 1, b=2) == 3
        for instances in ({4}, {-1, 0}, set()):
            with pytest.raises(poptorch.Error, match="instances 0 to 3"):
                popdist.execute_on_instances(instances, lambda: None)

    def test_without_poprun_a_program_is_one_instance_with_one_replica(self) -> None:
        assert not popdist.isPopdistEnvSet()
        assert place() == Place(1, 1, 1, 0, 0)
        assert (popdist.getNumInstances(), popdist.getInstanceIndex(), popdist.getDeviceId()) == (1, 0, 0)
        assert popdist.checkNumIpusPerReplica(7)
        with pytest.raises(poptorch.Error, match=r"not started by poprun.*isPopdistEnvSet"):
            popdist.init()
        popdist.initializeBackend()
        assert popdist.isBackendInitialized()
        popdist.synchronize()
        assert popdist.execute_on_instances({0}, lambda: "done") == "done"
        popdist.finalizeBackend()
        assert not popdist.isBackendInitialized()


@pytest.mark.parametrize(("change", "said"), [
    *(({name: None}, f"Only part of poprun's environment.*{name} is not") for name in NAMES),
    ({TOTAL: "eight"}, f"{TOTAL}='eight' is not a whole number from"),
    ({TOTAL: "0"}, f"{TOTAL}='0' is not a whole number from"),
    ({OFFSET: "-2"}, f"{OFFSET}='-2' is not a whole number from"),
    ({OFFSET: ""}, f"{OFFSET}='' is not a whole number from"),
    ({TOTAL: "7"}, "same number of replicas"),
    ({UNIFORM: "0"}, "same number of replicas"),
    ({OFFSET: "3"}, "not the first replica of any instance"),
    ({OFFSET: "8"}, "not the first replica of any instance"),
])  # fmt: skip
def test_a_broken_environment_is_refused(change: dict[str, str | None], said: str) -> None:
    changed = {**{name: EXAMPLE[name] for name in NAMES}, **change}
    with pytest.raises(poptorch.Error, match=said):
        place({name: value for name, value in changed.items() if value is not None})


class TestOptions:
    """Section 5.3."""

    def test_replicas_processes_and_device_come_from_the_run_and_the_rest_is_as_in_plain_options(
        self, by_poprun: bool
    ) -> None:
        options, plain = popdist.poptorch.Options(), poptorch.Options()
        assert isinstance(options, poptorch.Options)
        found = (options.replication_factor, options.Distributed.processId, options.Distributed.numProcesses)
        assert found == ((2, 3, 4) if by_poprun else (1, 0, 1))
        for each in (options, plain):
            each.deviceIterations(3).outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)
            each.Training.gradientAccumulation(4)
            each.Precision.enableStochasticRounding(True)
        plain.replicationFactor(2 if by_poprun else 1)
        assert options.toDict() == {**plain.toDict(), "ipu_id": 12 if by_poprun else 0}

    @pytest.mark.parametrize(("name", "arguments"), [
        ("useIpuId", [1]), ("replicationFactor", [2]), ("Distributed.disable", []),
        ("Distributed.setEnvVarNames", ["A", "B"]),
        ("Distributed.configureProcessId", [1]),  # refused before its arguments are counted
    ])  # fmt: skip
    @pytest.mark.usefixtures("by_poprun")
    def test_what_poprun_decides_on_cannot_be_changed(self, name: str, arguments: list[Any]) -> None:
        for options in (popdist.poptorch.Options(), popdist.poptorch.Options().clone()):
            with pytest.raises(RuntimeError, match=re.escape(f"Cannot call `{name}` with popdist.poptorch.Options")):
                attrgetter(name)(options)(*arguments)

    @pytest.mark.usefixtures("by_poprun")
    def test_the_device_is_chosen_for_frozen_options_too_and_leaves_them_frozen(self) -> None:
        options = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)
        poptorch.DataLoader(options, list(range(64)))
        assert "ipu_id" in options.toDict()
        with pytest.raises(AttributeError, match="frozen"):
            options.deviceIterations(2)
        assert options.clone().deviceIterations(2).device_iterations == 2
        assert copy.copy(options).replication_factor == options.replication_factor

    def test_the_number_of_ipus_must_be_the_one_that_poprun_was_told(self, by_poprun: bool) -> None:
        for options in (popdist.poptorch.Options(2), popdist.poptorch.Options(ipus_per_replica=2)):
            assert options.replication_factor == (2 if by_poprun else 1)
        if by_poprun:
            with pytest.raises(poptorch.Error, match=r"ipus_per_replica=4.*--ipus-per-replica 2"):
                popdist.poptorch.Options(4)
