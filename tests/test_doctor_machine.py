"""The doctor on the machine: threads and memory."""

from __future__ import annotations

import os
from pathlib import Path

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


UNIT = "system.slice/jupyter-anna.service"


def machine_with(root: Path, group: str, **values: str) -> None:
    """Write what the kernel shows to a process in a control group, such as the one of a hub's unit, with these values.

    `cpu.max` is "quota period", in microseconds: the kernel's documentation of control groups, version 2.
    """
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("_", ".")).write_text(f"{value}\n", encoding="ascii")
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(f"0::/{UNIT}\n", encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root folder of a machine with eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("group", ["", "system.slice", UNIT], ids=["container", "slice", "service"])
@pytest.mark.parametrize(("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8)])
def test_a_quota_counts_wherever_it_is_set(root: Path, group: str, quota: str, cores: int) -> None:
    machine_with(root, group, cpu_max=quota)
    assert machine.usable_cores() == cores


def test_the_tightest_quota_counts(root: Path) -> None:
    machine_with(root, UNIT, cpu_max="400000 100000")
    machine_with(root, "system.slice", cpu_max="300000 100000")
    assert machine.usable_cores() == 3


def test_without_control_groups_all_cores_count(root: Path) -> None:
    assert machine.usable_cores() == 8


@pytest.mark.parametrize(
    ("available", "verdict"),
    [(8 * GIB, Severity.OK), (3 * GIB // 2, Severity.NOTICE), (GIB // 2, Severity.PROBLEM)],
)
def test_memory(available: int, verdict: Severity) -> None:
    assert judge_memory(available).verdict is verdict


@pytest.mark.parametrize("group", ["", UNIT], ids=["container", "service"])
def test_a_memory_limit_counts_wherever_it_is_set(root: Path, group: str) -> None:
    machine_with(root, group, memory_max=str(3 * 2**20), memory_current=str(2**20))
    assert machine.available_memory() == 2 * 2**20


def test_files_that_the_kernel_can_drop_do_not_count_as_used(root: Path) -> None:
    """`memory.current` has the page cache in it: the kernel's documentation of control groups, version 2."""
    stat = f"anon {2**20}\nfile {3 * 2**20}\ninactive_file {2 * 2**20}\nactive_file {2**20}"
    machine_with(root, UNIT, memory_max=str(4 * 2**20), memory_current=str(4 * 2**20), memory_stat=stat)
    assert machine.available_memory() == 2 * 2**20


def test_the_machine_of_the_tests_has_some_memory() -> None:
    assert machine.available_memory() > 2**20
