"""R replicas in one process, R replicas over P instances and plain PyTorch on the global batch give the same weights.

They agree to rounding only, because the gradients of the replicas are added in another order; instances among one
another agree in every bit, because each gets the same sums.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from instance_cases import CASES, REPLICAS, train, train_plainly
from poprun_support import HERE, TIMEOUT_IN_S, poprun
from torch import Tensor

import poptorch
from ipu_model.compute.threads import Threads
from ipu_model.instances import Group
from poptorch._backend.compile import fewest_threads

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
# Half weights and states may round to neighbouring values where sums differ in their last bit.
HALF_TOLERANCE = {"rtol": 2e-3, "atol": 2e-3}
PLAIN = [name for name, case in CASES.items() if case.plain is not None]
REPRODUCIBLE = [name for name, case in CASES.items() if not case.stochastic_rounding]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what 2 instances with 2 replicas each have saved."""
    return run_of(tmp_path_factory, ["--num-instances", "2", "--num-replicas", "4"], 2, "all")


@pytest.fixture(scope="module")
def on_hosts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what 4 instances on two hosts, which are addresses of this machine, have saved."""
    arguments = ["--host", "127.0.0.2,127.0.0.3", "--num-instances=4", "--num-replicas=4", "--ipus-per-replica=2"]
    return run_of(tmp_path_factory, arguments, 4, "few")


def run_of(factory: pytest.TempPathFactory, arguments: list[str], instances: int, what: str) -> list[dict[str, Any]]:
    folder = factory.mktemp("results")
    run = poprun(*arguments, "python", str(HERE / "instance_program.py"), str(folder), what)
    result = run.finish()
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("poprun: ") == 0
    lines = [f"[1,{index}]<stdout>:the instance has come to its end" for index in range(instances)]
    assert sorted(result.stdout.splitlines()) == lines
    run.assert_nothing_left()
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(instances)]


@cache
def in_one_process(name: str) -> dict[str, Tensor]:
    return train(CASES[name], poptorch.Options().replicationFactor(REPLICAS))


def parameters(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the outputs and what belongs to each replica."""
    return {key: value for key, value in state.items() if key != "outputs" and "running" not in key}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], half: bool = False) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(HALF_TOLERANCE if half else TOLERANCE))


class TestWeights:
    @pytest.mark.parametrize("name", REPRODUCIBLE)
    def test_are_those_of_one_process_with_all_replicas(self, results: list[dict[str, Any]], name: str) -> None:
        expected = parameters(name, in_one_process(name))
        assert_close(results[0]["cases"][name], expected, CASES[name].half)

    @pytest.mark.parametrize("name", PLAIN)
    def test_are_those_of_plain_pytorch_on_the_global_batch(self, results: list[dict[str, Any]], name: str) -> None:
        assert_close(results[0]["cases"][name], train_plainly(CASES[name]))

    @pytest.mark.parametrize("name", CASES)
    def test_are_the_same_bits_in_all_instances(self, results: list[dict[str, Any]], name: str) -> None:
        first, second = (parameters(name, result["cases"][name]) for result in results)
        assert first
        assert all(torch.equal(first[key], second[key]) for key in first)

    def test_are_the_same_over_two_hosts(self, on_hosts: list[dict[str, Any]]) -> None:
        for result in on_hosts:
            assert_close(result["cases"]["cnn"], parameters("cnn", in_one_process("cnn")))


class TestReplicas:
    @pytest.mark.parametrize("name", REPRODUCIBLE)
    def test_outputs_of_each_instance_are_those_of_its_replicas(self, results: list[dict[str, Any]], name: str) -> None:
        together = torch.cat([result["cases"][name]["outputs"] for result in results], dim=3)
        expected = in_one_process(name)["outputs"]
        tolerance = HALF_TOLERANCE if CASES[name].half else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(together, expected, **tolerance)

    def test_running_statistics_are_those_of_the_instances_first_replica(self, results: list[dict[str, Any]]) -> None:
        expected = {key: value for key, value in in_one_process("cnn").items() if "running" in key}
        first, second = ({key: result["cases"]["cnn"][key] for key in expected} for result in results)
        assert_close(first, expected)
        assert not torch.allclose(first["body.1.running_mean"], second["body.1.running_mean"])


class TestMistakes:
    def test_different_programs_are_an_error_in_all_instances(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            text = result["mistakes"]["different programs"]
            assert "The instances compiled different programs" in text
            assert "lr=0.1," in text
            assert "lr=0.2," in text
            assert "deviceIterations" not in text

    def test_different_initial_weights_are_warned_of(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            assert "start from different weights" in result["mistakes"]["different weights"]


class TestEnvironment:
    """Data reference, sections 5.1 and 7.1."""

    @pytest.mark.parametrize("rank", range(4))
    def test_hosts_are_filled_one_after_the_other(self, on_hosts: list[dict[str, Any]], rank: int) -> None:
        expected = {
            "total": 4, "local": 1, "ipus": 2, "instances": 4, "index": rank, "local index": rank % 2, "offset": rank,
            "device": rank % 2 * 2, "replication factor": 1, "process": rank,
        }  # fmt: skip
        assert {key: on_hosts[rank]["queries"][key] for key in expected} == expected
        environment = on_hosts[rank]["queries"]["environment"]
        assert (environment["OMPI_COMM_WORLD_RANK"], environment["OMPI_COMM_WORLD_SIZE"]) == (str(rank), "4")
        assert (environment["OMPI_COMM_WORLD_LOCAL_RANK"], environment["OMPI_COMM_WORLD_LOCAL_SIZE"]) == (
            str(rank % 2), "2",
        )  # fmt: skip
        assert environment["MASTER_ADDR"] == "127.0.0.2"
        assert environment["MASTER_PORT"] == on_hosts[0]["queries"]["environment"]["MASTER_PORT"]


class TestHorovod:
    """Data reference, section 6: 4 instances, `x = [i, 0]` on instance i."""

    @pytest.fixture
    def calls(self, on_hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [result["horovod"] for result in on_hosts]

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ("average", [1.5, 0.0]), ("sum", [6.0, 0.0]), ("old sum", [6.0, 0.0]), ("smallest", [0.0, 0.0]),
            ("largest", [3.0, 0.0]), ("broadcast", [1.0, 0.0]), ("parameters", [[1.0]]), ("all", [6.0, 0.0]),
        ],
    )  # fmt: skip
    def test_collectives_return_the_same_everywhere(
        self, calls: list[dict[str, Any]], call: str, expected: list[Any]
    ) -> None:
        assert [result[call].tolist() for result in calls] == [expected] * 4

    def test_ranks_are_instances(self, calls: list[dict[str, Any]]) -> None:
        assert [result["place"] for result in calls] == [(0, 4, 0, 2), (1, 4, 1, 2), (2, 4, 0, 2), (3, 4, 1, 2)]

    def test_grouped_tensors_keep_their_types(self, calls: list[dict[str, Any]]) -> None:
        for result in calls:
            half, whole = result["grouped"]
            assert (half.dtype, half.tolist()) == (torch.float16, [6.0, 0.0])
            assert (whole.dtype, whole.tolist()) == (torch.int64, [6])

    def test_gathered_rows_may_differ_in_number(self, calls: list[dict[str, Any]]) -> None:
        expected = [[rank, rank] for rank in range(4) for _ in range(rank + 1)]
        assert [result["gathered"].tolist() for result in calls] == [expected] * 4
        assert all("dimension 0" in result["uneven"] for result in calls)

    def test_objects_and_optimiser_state_come_from_the_root(self, calls: list[dict[str, Any]]) -> None:
        assert [result["object"] for result in calls] == [{"from": 1}] * 4
        assert [result["optimiser"] for result in calls] == [2.0] * 4

    def test_execute_on_instances_limits_collectives(self, calls: list[dict[str, Any]]) -> None:
        assert calls[0]["only 0"].tolist() == [0.0, 0.0]
        assert [result["only 0"] for result in calls[1:]] == [None] * 3


def test_all_compute_with_the_number_of_threads_of_the_busiest() -> None:
    group = create_autospec(Group, instance=True)
    group.gathered_objects.return_value = [4, 2, 3]
    assert fewest_threads(group, Threads(4)) == Threads(2)


class TestTorchrun:
    def test_processes_that_the_program_numbers_itself_train_together(self, tmp_path: Path) -> None:
        program = str(HERE / "torchrun_program.py")
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            f"--log-dir={tmp_path}",
        ]
        subprocess.run([*launcher, program, str(tmp_path)], check=True, timeout=TIMEOUT_IN_S)
        for rank in range(2):
            assert_close(torch.load(tmp_path / f"{rank}.pt"), parameters("cnn", in_one_process("cnn")))
