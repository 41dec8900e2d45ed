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

Results = list[dict[str, Any]]
PROGRAM = str(HERE / "instance_program.py")
# Half weights and states may round to neighbouring values where sums differ in their last bit.
HALF_TOLERANCE = {"rtol": 2e-3, "atol": 2e-3}
REPRODUCIBLE = [name for name, case in CASES.items() if not case.stochastic_rounding]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what 2 instances with 2 replicas each have saved."""
    return run_of(tmp_path_factory.mktemp("results"), ["--num-instances", "2", "--num-replicas", "4"], 2, "all")


@pytest.fixture(scope="module")
def on_hosts(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what 4 instances on two hosts, which are addresses of this machine, have saved."""
    arguments = ["--host", "127.0.0.2,127.0.0.3", "--num-instances=4", "--num-replicas=4", "--ipus-per-replica=2"]
    return run_of(tmp_path_factory.mktemp("results"), arguments, 4, "few")


def run_of(folder: Path, arguments: list[str], instances: int, what: str) -> Results:
    run = poprun(*arguments, "python", PROGRAM, what, str(folder))
    result = run.finish()
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("poprun: ") == 0
    lines = [f"[1,{index}]<stdout>:the instance has come to its end" for index in range(instances)]
    assert sorted(result.stdout.splitlines()) == lines
    run.assert_nothing_left()
    return [torch.load(folder / f"{rank}.pt") for rank in range(instances)]


@cache
def in_one_process(name: str) -> dict[str, Tensor]:
    return train(CASES[name], poptorch.Options().replicationFactor(REPLICAS))


def parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the outputs and what belongs to each replica."""
    return {key: value for key, value in state.items() if key != "outputs" and "running" not in key}


def assert_close(
    found: dict[str, Tensor], expected: dict[str, Tensor], half: bool = False, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(HALF_TOLERANCE if half else {"rtol": rtol, "atol": atol}))


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process_and_of_plain_pytorch(results: Results, name: str) -> None:
    case = CASES[name]
    first, second = (result["cases"][name] for result in results)
    for key, value in parameters(first).items():
        assert torch.equal(value, second[key])
    if name in REPRODUCIBLE:
        together = {"outputs": torch.cat([first["outputs"], second["outputs"]], dim=3)}
        expected = in_one_process(name)
        assert_close(first, parameters(expected), case.half)
        assert_close(together, {"outputs": expected["outputs"]}, case.half, rtol=1e-4, atol=1e-5)
    if case.plain:
        assert_close(first, train_plainly(case))


def test_weights_are_the_same_over_two_hosts(on_hosts: Results) -> None:
    for result in on_hosts:
        assert_close(result["cases"]["cnn"], parameters(in_one_process("cnn")))


def test_running_statistics_are_those_of_the_instances_first_replica(results: Results) -> None:
    expected = {key: value for key, value in in_one_process("cnn").items() if "running" in key}
    first, second = (result["cases"]["cnn"] for result in results)
    assert_close(first, expected)
    assert not torch.allclose(first["body.1.running_mean"], second["body.1.running_mean"])


def test_different_programs_are_an_error_in_all_instances_and_different_weights_are_warned_of(results: Results) -> None:
    for result in results:
        text = result["mistakes"]["different programs"]
        for words in ("The instances compiled different programs", "lr=0.1,", "lr=0.2,"):
            assert words in text
        assert "deviceIterations" not in text
        assert "start from different weights" in result["mistakes"]["different weights"]


class TestEnvironment:
    """Data reference, sections 5.1 and 7.1."""

    @pytest.mark.parametrize("rank", range(4))
    def test_hosts_are_filled_one_after_the_other(self, on_hosts: Results, rank: int) -> None:
        environment, first = (on_hosts[index]["queries"]["environment"] for index in (rank, 0))
        assert {**on_hosts[rank]["queries"], "environment": None} == {
            "environment": None,
            "total": 4, "local": 1, "ipus": 2, "instances": 4, "index": rank, "local index": rank % 2, "offset": rank,
            "device": rank % 2 * 2, "replication factor": 1, "process": rank,
        }  # fmt: skip
        expected = {"RANK": rank, "SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2}
        assert {name: int(environment[f"OMPI_COMM_WORLD_{name}"]) for name in expected} == expected
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.2", first["MASTER_PORT"])


class TestHorovod:
    """Data reference, section 6: 4 instances, `x = [i, 0]` on instance i."""

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ("average", [1.5, 0.0]), ("sum", [6.0, 0.0]), ("old sum", [6.0, 0.0]), ("smallest", [0.0, 0.0]),
            ("largest", [3.0, 0.0]), ("broadcast", [1.0, 0.0]), ("parameters", [[1.0]]), ("all", [6.0, 0.0]),
            ("gathered", [[rank, rank] for rank in range(4) for _ in range(rank + 1)]),
        ],
    )  # fmt: skip
    def test_collectives_return_the_same_everywhere(self, on_hosts: Results, call: str, expected: list[Any]) -> None:
        assert [result["horovod"][call].tolist() for result in on_hosts] == [expected] * 4

    def test_ranks_types_objects_and_limits(self, on_hosts: Results) -> None:
        calls = [result["horovod"] for result in on_hosts]
        assert [result["place"] for result in calls] == [(0, 4, 0, 2), (1, 4, 1, 2), (2, 4, 0, 2), (3, 4, 1, 2)]
        for result in calls:
            half, whole = result["grouped"]
            assert (half.dtype, half.tolist()) == (torch.float16, [6.0, 0.0])
            assert (whole.dtype, whole.tolist()) == (torch.int64, [6])
            assert "dimension 0" in result["uneven"]
            # Objects and optimiser state come from the root.
            assert (result["object"], result["optimiser"]) == ({"from": 1}, 2.0)
        assert calls[0]["only 0"].tolist() == [0.0, 0.0]
        assert [result["only 0"] for result in calls[1:]] == [None] * 3


def test_all_compute_with_the_number_of_threads_of_the_busiest() -> None:
    group = create_autospec(Group, instance=True)
    group.gathered_objects.return_value = [4, 2, 3]
    assert fewest_threads(group, Threads(4)) == Threads(2)


def test_processes_of_torchrun_that_the_program_numbers_itself_train_together(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, f"--log-dir={tmp_path}", PROGRAM, "torchrun", str(tmp_path)]
    subprocess.run(command, check=True, timeout=TIMEOUT_IN_S)
    for rank in range(2):
        assert_close(torch.load(tmp_path / f"{rank}.pt"), parameters(in_one_process("cnn")))
