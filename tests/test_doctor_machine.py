"""The doctor on the machine: threads, memory, disk, loopback connections."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ipu_course.doctor import machine_checks
from ipu_course.doctor.finding import Verdict
from ipu_course.doctor.machine_checks import GIB, judge_disk, judge_memory, judge_ports, judge_threads


@pytest.mark.parametrize(
    ("cores", "usable", "chosen", "verdict"),
    [
        (2, 2, "", Verdict.OK),  # a laptop: torch chooses well
        (2, 2, "1", Verdict.OK),
        (64, 4, "4,1", Verdict.OK),  # OpenMP's list for nested regions
        (64, 64, "", Verdict.OK),
        (64, 2, "", Verdict.NOTICE),  # a container's quota that OpenMP does not see
        (4, 4, "16", Verdict.NOTICE),
        (4, 4, "many", Verdict.NOTICE),
        (4, 4, "0", Verdict.NOTICE),
    ],
)
def test_threads(cores: int, usable: int, chosen: str, verdict: Verdict) -> None:
    finding = judge_threads(cores, usable, chosen)
    assert finding.verdict is verdict
    if verdict is Verdict.NOTICE:
        assert f"OMP_NUM_THREADS={usable}" in finding.cure


def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu.max` is "quota period", in microseconds: the kernel's documentation of control groups, version 2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine_checks, "_control_group", lambda name: "250000 100000")
    assert machine_checks.usable_cores() == 2
    monkeypatch.setattr(machine_checks, "_control_group", lambda name: "50000 100000")
    assert machine_checks.usable_cores() == 1
    monkeypatch.setattr(machine_checks, "_control_group", lambda name: "max 100000")
    assert machine_checks.usable_cores() == 8


@pytest.mark.parametrize(
    ("available", "verdict"),
    [(None, Verdict.OK), (8 * GIB, Verdict.OK), (3 * GIB // 2, Verdict.NOTICE), (GIB // 2, Verdict.PROBLEM)],
)
def test_memory(available: int | None, verdict: Verdict) -> None:
    assert judge_memory(available).verdict is verdict


def test_a_containers_memory_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"memory.max": str(3 * 2**20), "memory.current": str(2**20)}
    monkeypatch.setattr(machine_checks, "_control_group", lambda name: values[name])
    if not Path("/proc/meminfo").exists():
        pytest.skip("control groups are Linux's")
    assert machine_checks.available_memory() == 2 * 2**20


@pytest.mark.parametrize(
    ("free", "verdict"),
    [
        ({"/a": 90 * GIB, "/b": 3 * GIB}, Verdict.OK),
        ({"/a": 90 * GIB, "/b": GIB}, Verdict.NOTICE),
        ({"/a": 90 * GIB, "/b": GIB // 100}, Verdict.PROBLEM),
    ],
)
def test_the_fullest_disk_counts(free: dict[str, int], verdict: Verdict) -> None:
    finding = judge_disk(free)
    assert finding.verdict is verdict
    assert finding.what.endswith("/b")


def test_loopback() -> None:
    assert judge_ports("Operation not permitted", lab_port_is_free=False).verdict is Verdict.PROBLEM
    assert judge_ports("", lab_port_is_free=True).verdict is Verdict.OK
    assert "next free one" in judge_ports("", lab_port_is_free=False).what


def test_a_forbidden_socket_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(machine_checks, "_talk_to_ourselves", refuse)
    finding = machine_checks.check_ports()
    assert finding.verdict is Verdict.PROBLEM
    assert "Operation not permitted" in finding.what


def test_a_taken_port_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        monkeypatch.setattr(machine_checks, "LAB_PORT", other.getsockname()[1])
        assert "is taken" in machine_checks.check_ports().what


def test_this_machine_is_looked_at_without_an_error() -> None:
    checks = (machine_checks.check_threads, machine_checks.check_memory, machine_checks.check_disk)
    assert all(check().what for check in checks)
    assert machine_checks.check_ports().verdict is Verdict.OK
    available = machine_checks.available_memory()
    assert available is None or available > 2**20
