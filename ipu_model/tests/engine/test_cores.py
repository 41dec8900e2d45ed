"""The processor time that a process can get, read from made-up `proc` and `sys` folders."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from ipu_model.cores import Cores, CoreWatch, usable_cores

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A folder that looks like the root of a Linux machine with four cores, and clocks that a test sets."""

    def __init__(self, root: Path) -> None:
        self.root, self.now, self.own = root, 0.0, 0.0
        self.at_work(0, 0, 0, 0)

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def at_work(self, *seconds: float) -> None:
        """Set how long each core has been busy since the machine started; each was idle for 1,000 s."""
        lines = [f"cpu{core} {round(each * TICKS)} 0 0 {1000 * TICKS} 0 0 0 0 0 0" for core, each in enumerate(seconds)]
        self.write("proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 1"]))

    def watch(self, *cores: int) -> CoreWatch:
        """Return a watch from a process that may use these cores."""
        return CoreWatch(self.root, lambda: frozenset(cores), lambda: (self.now, self.own))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestCores:
    def test_cores_that_nobody_uses_are_free(self) -> None:
        assert Cores(4).free == 4
        assert Cores(4, busy=1.5).free == 2.5

    def test_a_quota_limits_them(self) -> None:
        assert Cores(64, quota=2.5).free == 2.5
        assert Cores(64, quota=2.5, quota_taken=1).free == 1.5
        assert Cores(4, busy=3, quota=2.5).free == 1

    def test_never_more_threads_at_once_than_whole_cores_but_always_one(self) -> None:
        assert Cores(4, busy=4).at_once == 4  # a busy core is shared, not taken away
        assert Cores(64, quota=2.5).at_once == 2
        assert Cores(64, quota=0.5).at_once == 1

    def test_time_is_shared_evenly_where_cores_are_too_few(self) -> None:
        assert Cores(4, busy=2).share(2) == 2
        # Two threads beside two busy processes on two cores get half of them; one thread gets a third.
        assert Cores(2, busy=2).share(2) == 1
        assert Cores(2, busy=2).share(1) == pytest.approx(2 / 3)
        assert Cores(64, quota=2).share(8) == 2


class TestBusyCores:
    def test_load_of_other_processes_is_total_load_minus_own(self, machine: Machine) -> None:
        watch = machine.watch(0, 1, 2, 3)
        machine.now, machine.own = 2.0, 2.0
        machine.at_work(2, 2, 1, 0)  # 5 s of work in 2 s, of which 2 s are our own
        assert watch.cores() == Cores(4, busy=1.5)

    def test_only_cores_that_it_may_use_count(self, machine: Machine) -> None:
        watch = machine.watch(2, 3)
        machine.now, machine.own = 2.0, 2.0
        machine.at_work(2, 2, 2, 1)
        assert watch.cores() == Cores(2, busy=0.5)

    def test_waiting_for_a_disk_is_not_work_but_interrupts_and_a_hypervisor_are(self, machine: Machine) -> None:
        machine.write("proc/stat", "cpu0 0 0 0 0 0 0 0 0 0 0")
        watch = machine.watch(0)
        machine.now = 1.0
        fields = {"user": 10, "nice": 10, "system": 10, "idle": 0, "iowait": 40, "irq": 10, "softirq": 10, "steal": 20}
        machine.write("proc/stat", f"cpu0 {' '.join(str(each * TICKS // 100) for each in fields.values())} 10 10")
        assert watch.cores().busy == pytest.approx(0.7)

    def test_a_small_load_is_ignored_as_noise(self, machine: Machine) -> None:
        watch = machine.watch(0, 1, 2, 3)
        machine.now = 1.0
        machine.at_work(0.1, 0, 0, 0)
        assert watch.cores().busy == 0

    def test_a_machine_without_load_figures_counts_as_free(self, tmp_path: Path) -> None:
        assert CoreWatch(tmp_path).cores() == Cores(usable_cores())

    def test_without_affinity_all_cores_are_usable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
        monkeypatch.setattr(os, "cpu_count", lambda: 10)
        assert CoreWatch(tmp_path).cores() == Cores(10)

    def test_old_measurements_are_forgotten(self, machine: Machine) -> None:
        watch = machine.watch(0, 1)
        machine.now = 8.0
        machine.at_work(8, 8)
        watch.look()
        assert watch.cores().busy == 2
        machine.now = 100.0
        watch.look()
        machine.now = 101.0
        assert watch.cores().busy == 0

    def test_a_changed_affinity_restarts_the_watch(self, machine: Machine) -> None:
        usable = {0, 1, 2, 3}
        watch = CoreWatch(machine.root, lambda: frozenset(usable), lambda: (machine.now, machine.own))
        machine.now = 1.0
        machine.at_work(1, 1, 1, 0)
        usable.remove(0)
        watch.look()
        machine.now = 2.0
        machine.at_work(2, 2, 1, 0)
        assert watch.cores() == Cores(3, busy=1)

    def test_a_watch_that_is_too_short_is_extended(self) -> None:
        watch = CoreWatch()
        assert watch.cores(at_least=0.05).usable == usable_cores()
        assert watch._clocks()[0] - watch._start.clock >= 0.05


class TestQuotas:
    def test_no_cgroup_no_quota(self, machine: Machine) -> None:
        assert machine.watch(0).cores().quota == math.inf

    @pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
    def test_version_2(self, machine: Machine, mount: str) -> None:
        machine.write("proc/self/cgroup", "0::/user.slice/mine")
        machine.write(f"{mount}/user.slice/mine/cpu.max", "150000 100000\n")
        assert machine.watch(0, 1).cores().quota == 1.5

    def test_the_smallest_quota_up_to_the_root_counts(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/pod/container")
        machine.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
        machine.write("sys/fs/cgroup/pod/cpu.max", "200000 100000\n")
        machine.write("sys/fs/cgroup/cpu.max", "800000 100000\n")
        assert machine.watch(0, 1).cores().quota == 2

    @pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
    def test_version_1(self, machine: Machine, controllers: str) -> None:
        machine.write("proc/self/cgroup", f"7:memory:/elsewhere\n3:{controllers}:/mine\n0::/")
        machine.write(f"sys/fs/cgroup/{controllers}/mine/cpu.cfs_quota_us", "50000\n")
        machine.write(f"sys/fs/cgroup/{controllers}/mine/cpu.cfs_period_us", "100000\n")
        assert machine.watch(0, 1).cores().quota == 0.5

    def test_version_1_says_no_quota_with_a_negative_number(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "3:cpu:/")
        machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
        machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        assert machine.watch(0, 1).cores().quota == math.inf

    def test_a_container_sees_its_own_folder_as_the_root_but_the_hosts_path(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/0123456789ab")
        machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
        machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        assert machine.watch(*range(4)).cores().quota == 3

    def test_others_in_the_container_take_some_of_it_in_version_2(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/")
        machine.write("sys/fs/cgroup/cpu.max", "200000 100000\n")
        machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 5000000\nuser_usec 1\n")
        watch = machine.watch(*range(4))
        machine.now, machine.own = 2.0, 1.0
        machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 8000000\nuser_usec 1\n")  # 3 s in 2 s, 1 s our own
        assert watch.cores() == Cores(4, quota=2, quota_taken=1)

    def test_others_in_the_container_take_some_of_it_in_version_1(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "3:cpu,cpuacct:/")
        folder = "sys/fs/cgroup/cpu,cpuacct"
        machine.write(f"{folder}/cpu.cfs_quota_us", "200000\n")
        machine.write(f"{folder}/cpu.cfs_period_us", "100000\n")
        machine.write(f"{folder}/cpuacct.usage", "5000000000\n")
        watch = machine.watch(*range(4))
        machine.now = 1.0
        machine.write(f"{folder}/cpuacct.usage", "5500000000\n")
        assert watch.cores().quota_taken == 0.5
