"""The doctor on the machine: threads and memory."""

from __future__ import annotations

import os

import pytest

from ipu_course.programs.doctor import machine
from ipu_course.programs.doctor.finding import Severity
from ipu_course.programs.doctor.machine import GIB, judge_memory, judge_threads


@pytest.mark.parametrize(
    ("cores", "usable", "chosen", "verdict"),
    [
        (2, 2, "", Severity.OK),  # a laptop: torch chooses well
        (2, 2, "1", Severity.OK),
        (64, 4, "4,1", Severity.OK),  # OpenMP's list for nested regions
        (64, 64, "", Severity.OK),
        (64, 2, "", Severity.NOTICE),  # a container's quota that OpenMP does not see
        (4, 4, "16", Severity.NOTICE),
        (4, 4, "many", Severity.NOTICE),
        (4, 4, "0", Severity.NOTICE),
    ],
)
def test_threads(cores: int, usable: int, chosen: str, verdict: Severity) -> None:
    finding = judge_threads(cores, usable, chosen)
    assert finding.verdict is verdict
    if verdict is Severity.NOTICE:
        assert f"OMP_NUM_THREADS={usable}" in finding.cure


def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu.max` is "quota period", in microseconds: the kernel's documentation of control groups, version 2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_control_group", lambda name: "250000 100000")
    assert machine.usable_cores() == 2
    monkeypatch.setattr(machine, "_control_group", lambda name: "50000 100000")
    assert machine.usable_cores() == 1
    monkeypatch.setattr(machine, "_control_group", lambda name: "max 100000")
    assert machine.usable_cores() == 8


@pytest.mark.parametrize(
    ("available", "verdict"),
    [(8 * GIB, Severity.OK), (3 * GIB // 2, Severity.NOTICE), (GIB // 2, Severity.PROBLEM)],
)
def test_memory(available: int, verdict: Severity) -> None:
    assert judge_memory(available).verdict is verdict


def test_a_containers_memory_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"memory.max": str(3 * 2**20), "memory.current": str(2**20)}
    monkeypatch.setattr(machine, "_control_group", lambda name: values.get(name, ""))
    assert machine.available_memory() == 2 * 2**20


def test_files_that_the_kernel_can_drop_do_not_count_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """`memory.current` has the page cache in it: the kernel's documentation of control groups, version 2."""
    values = {
        "memory.max": str(4 * 2**20),
        "memory.current": str(4 * 2**20),
        "memory.stat": f"anon {2**20}\nfile {3 * 2**20}\ninactive_file {2 * 2**20}\nactive_file {2**20}",
    }
    monkeypatch.setattr(machine, "_control_group", lambda name: values[name])
    assert machine.available_memory() == 2 * 2**20


def test_the_machine_of_the_tests_has_some_memory() -> None:
    assert machine.available_memory() > 2**20
