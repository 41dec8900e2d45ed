"""How much processor time this process can get: usable cores, a container's quota, and other processes' load.

All figures come from files that Linux provides; without these (macOS), the cores count as free.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# A load below this share of a core may be noise of counting clock ticks.
_NOISE = 0.15
_MEMORY_SECONDS = 10.0


@dataclass(frozen=True)
class Cores:
    """The processor time that a process can get.

    `usable` counts the cores that it may run on; other processes use `busy` of these. A `quota` limits the time of a
    container, in cores; other processes of the container use `quota_taken` of it.
    """

    usable: int
    busy: float = 0.0
    quota: float = math.inf
    quota_taken: float = 0.0

    @property
    def free(self) -> float:
        """The processor time that no other process uses, in cores."""
        return max(0.0, min(self.usable - self.busy, self.quota - self.quota_taken))

    @property
    def at_once(self) -> int:
        """The largest number of threads that can compute at the same time, however busy the machine is."""
        return max(1, math.floor(min(self.usable, self.quota)))

    def share(self, threads: int) -> float:
        """Return the processor time that `threads` running threads get, in cores.

        Free cores come first. Where they are too few, the scheduler divides the time evenly among all threads.
        """
        if threads <= self.free:
            return float(threads)
        shares = [threads * self.usable / (threads + self.busy)]
        if self.quota < math.inf:
            shares.append(threads * self.quota / (threads + self.quota_taken))
        return min(float(threads), *shares)


@dataclass(frozen=True)
class _Quota:
    """A cgroup's limit in cores, and the file that counts the time it has used, in units of `unit` seconds."""

    cores: float
    counter: Path
    unit: float

    def seconds(self) -> float:
        """Return the processor time that the cgroup has used so far; 0 if the system does not report it."""
        for line in _lines(self.counter):
            words = line.split()
            if words[0] == "usage_usec" or len(words) == 1:
                return int(words[-1]) * self.unit
        return 0.0


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    cores = _affinity()
    return os.cpu_count() or 1 if cores is None else len(cores)


def _affinity() -> frozenset[int] | None:
    """Return the cores that this process may run on; `None` if the system does not report them (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return None if affinity is None else frozenset(affinity(0))


def _clocks() -> tuple[float, float]:
    """Return the time, and the processor time that all threads of this process have used, in seconds."""
    return time.perf_counter(), time.process_time()


class CoreWatch:
    """Watches the machine to find the load of other processes.

    It covers at most the last ten seconds, and less if it was created or `look` was called later.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        affinity: Callable[[], frozenset[int] | None] = _affinity,
        clocks: Callable[[], tuple[float, float]] = _clocks,
    ) -> None:
        """Start watching the machine whose `proc` and `sys` are in `root`.

        `affinity` returns the numbers of the usable cores, if the system tells them; `clocks` the time and this
        process's processor time.
        """
        self._root, self._read_affinity, self._clocks = root, affinity, clocks
        self._start_afresh()

    def look(self) -> None:
        """Forget measurements that are too old to be useful; call this some time before `cores`."""
        is_old = self._clocks()[0] - self._start.clock > _MEMORY_SECONDS
        # A forked process has used no processor time yet.
        if is_old or self._pid != os.getpid() or self._affinity != self._read_affinity():
            self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid, self._affinity, self._quota = os.getpid(), self._read_affinity(), _tightest_quota(self._root)
        self._start = self._now()

    def cores(self, at_least: float = 0.0) -> Cores:
        """Return what the process can get, measured over at least `at_least` seconds; sleep if fewer have passed."""
        start = self._start
        time.sleep(max(0.0, start.clock + at_least - self._clocks()[0]))
        now = self._now()
        passed, own = now.clock - start.clock, now.own - start.own
        usable = usable_cores() if self._affinity is None else len(self._affinity)
        if passed <= 0:
            return Cores(usable, quota=self._limit)
        return Cores(
            usable,
            busy=_without_noise((now.machine - start.machine - own) / passed, usable),
            quota=self._limit,
            quota_taken=_without_noise((now.container - start.container - own) / passed, self._limit),
        )

    @property
    def _limit(self) -> float:
        return math.inf if self._quota is None else self._quota.cores

    def _now(self) -> _Reading:
        container = 0.0 if self._quota is None else self._quota.seconds()
        return _Reading(*self._clocks(), self._machine_seconds(), container)

    def _machine_seconds(self) -> float:
        """Return the time for which the usable cores have been busy, whichever process ran on them."""
        names = {f"cpu{number}" for number in self._affinity or ()}
        ticks = 0
        for line in _lines(self._root / "proc/stat"):
            name, *counts = line.split()
            if name in names:
                # Guests' time, which follows steal, is already in user and nice.
                user, nice, system, _idle, _waiting, *interrupts_and_steal = map(int, counts[:8])
                ticks += user + nice + system + sum(interrupts_and_steal)
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Reading:
    """The clock, and the seconds of processor time so far: this process's, the cores' and the container's."""

    clock: float
    own: float
    machine: float
    container: float


def _without_noise(taken: float, most: float) -> float:
    return 0.0 if taken < _NOISE else min(taken, most)


def _tightest_quota(root: Path) -> _Quota | None:
    """Return the smallest CPU quota among this process's cgroups and those around them."""
    quotas = [quota for folder in _cgroups(root) for quota in _quotas(folder)]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, and of those around them, as far as they can be seen."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in [mounts / controllers, mounts / "cpu"] if controllers else [mounts, mounts / "unified"]:
            # Inside a container the path can be that of the host, while the mount shows the container's own folder.
            own = mount / path.strip().strip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _quotas(folder: Path) -> Iterator[_Quota]:
    """Yield the quota of a cgroup of version 2 or 1."""
    for line in _lines(folder / "cpu.max"):
        limit, period = line.split()
        if limit != "max":
            yield _Quota(int(limit) / int(period), folder / "cpu.stat", 1e-6)
    for limit, period in zip(_lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")):
        if int(limit) > 0:
            yield _Quota(int(limit) / int(period), folder / "cpuacct.usage", 1e-9)


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line.strip()]
    except OSError:
        return []
