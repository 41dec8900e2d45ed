"""The processor time that a process can get, read from made-up `proc` and `sys` folders."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ipu_model.cores import Cores, CoreWatch, usable_cores

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A folder that looks like the root of a Linux machine with four cores, and clocks that a test sets."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.own, self.usable = root, 0.0, 0.0, {0, 1, 2, 3}
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.own)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: self.usable, raising=False)
        self.at_work(0, 0, 0, 0)

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def at_work(self, *seconds: float) -> None:
        """Set how long each core has been busy since the machine started; each was idle for 1,000 s."""
        lines = [f"cpu{core} {round(busy * TICKS)} 0 0 {1000 * TICKS} 0 0 0 0" for core, busy in enumerate(seconds)]
        self.write("proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 1"]))

    def cores(self, change: Callable[[], None] = lambda: None) -> Cores:
        """Return what is measured while `change` happens."""
        watch = CoreWatch(self.root)
        change()
        return watch.cores()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(("cores", "free", "at_once"), [
    (Cores(4), 4, 4),
    (Cores(4, busy=1.5), 2.5, 4),
    (Cores(4, busy=4), 0, 4),  # a busy core is shared, not taken away
    (Cores(64, quota=2.5), 2.5, 2),
    (Cores(64, quota=0.5), 0.5, 1),
    (Cores(4, busy=3, quota=2.5), 1, 2),
])  # fmt: skip
def test_free_cores_are_those_that_nobody_uses_within_the_quota(cores: Cores, free: float, at_once: int) -> None:
    assert (cores.free, cores.at_once) == (free, at_once)


@pytest.mark.parametrize(("cores", "threads", "share"), [
    (Cores(4, busy=2), 2, 2),
    # Two threads beside two busy processes on two cores get half of them; one thread gets a third.
    (Cores(2, busy=2), 2, 1),
    (Cores(2, busy=2), 1, pytest.approx(2 / 3)),
    (Cores(64, quota=2), 8, 2),
])  # fmt: skip
def test_time_is_shared_evenly_where_cores_are_too_few(cores: Cores, threads: int, share: float) -> None:
    assert cores.share(threads) == share


@pytest.mark.parametrize(("usable", "seconds", "expected"), [
    ({0, 1, 2, 3}, (2, 2, 1, 0), Cores(4, busy=1.5)),  # 5 s of work in 2 s, of which 2 s are our own
    ({2, 3}, (2, 2, 2, 1), Cores(2, busy=0.5)),
    ({0, 1, 2, 3}, (2, 0.2, 0, 0), Cores(4)),  # noise of counting
])  # fmt: skip
def test_load_of_others_on_usable_cores(
    machine: Machine, usable: set[int], seconds: tuple[float, ...], expected: Cores
) -> None:
    def work() -> None:
        machine.now, machine.own = 2.0, 2.0
        machine.at_work(*seconds)

    machine.usable = usable
    assert machine.cores(work) == expected


def test_waiting_for_a_disk_is_not_work_but_interrupts_and_a_hypervisor_are(machine: Machine) -> None:
    fields = {"user": 10, "nice": 10, "system": 10, "idle": 0, "iowait": 40, "irq": 10, "softirq": 10, "steal": 20}

    def work() -> None:
        machine.now = 1.0
        percent = " ".join(str(share * TICKS // 100) for share in fields.values())
        machine.write("proc/stat", f"cpu0 {percent} 10 10")

    assert machine.cores(work).busy == pytest.approx(0.7)


def test_without_figures_the_cores_count_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CoreWatch(tmp_path).cores() == Cores(usable_cores())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert CoreWatch(tmp_path).cores() == Cores(10)


def test_a_watch_that_is_too_short_is_extended() -> None:
    before = time.perf_counter()
    assert CoreWatch().cores(at_least=0.05).usable == usable_cores()
    assert time.perf_counter() - before >= 0.05


# The lines of /proc/self/cgroup, the files below /sys/fs/cgroup, and the quota that they mean.
QUOTAS: dict[str, tuple[str, dict[str, str], float]] = {
    "no cgroup": ("", {}, math.inf),
    "version 2": ("0::/user.slice/mine", {"user.slice/mine/cpu.max": "150000 100000\n"}, 1.5),
    "version 2 beside version 1": ("0::/mine", {"unified/mine/cpu.max": "150000 100000\n"}, 1.5),
    "the smallest up to the root": (
        "0::/pod/container",
        {"pod/container/cpu.max": "max 100000", "pod/cpu.max": "200000 100000", "cpu.max": "800000 100000"},
        2,
    ),
    "version 1": (
        "7:memory:/elsewhere\n3:cpu:/mine\n0::/",
        {"cpu/mine/cpu.cfs_quota_us": "50000\n", "cpu/mine/cpu.cfs_period_us": "100000\n"},
        0.5,
    ),
    "version 1, several controllers": (
        "3:cpu,cpuacct:/mine",
        {"cpu,cpuacct/mine/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/mine/cpu.cfs_period_us": "100000\n"},
        0.5,
    ),
    "version 1 without": ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
    "a container sees its own folder as the root but the host's path": (
        "4:cpu,cpuacct:/docker/0123456789ab",
        {"cpu,cpuacct/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
        3,
    ),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_quotas(machine: Machine, case: str) -> None:
    cgroup, files, quota = QUOTAS[case]
    machine.write("proc/self/cgroup", cgroup)
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    assert machine.cores().quota == quota
