"""The processor time for this process: usable cores, a container's quota, others' load; without Linux all are free."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A load below this share of a core may be noise of counting clock ticks.
_NOISE = 0.15


@dataclass(frozen=True)
class Cores:
    """The processor time that a process can get: `usable` cores, the `busy` ones of others, a container's `quota`."""

    usable: int
    busy: float = 0.0
    quota: float = math.inf

    @property
    def free(self) -> float:
        return max(0.0, min(self.usable - self.busy, self.quota))

    @property
    def at_once(self) -> int:
        """The largest number of threads that can compute at the same time, however busy the machine is."""
        return max(1, math.floor(min(self.usable, self.quota)))

    def share(self, threads: int) -> float:
        """Return the cores' time that `threads` get: free cores first, then evenly shared among all threads."""
        if threads <= self.free:
            return float(threads)
        return min(float(threads), threads * self.usable / (threads + self.busy), self.quota)


def usable_cores() -> int:
    return len(_affinity()) or os.cpu_count() or 1


def _affinity() -> frozenset[int]:
    """Return the cores that this process may run on; none if the system does not report them (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return frozenset() if affinity is None else frozenset(affinity(0))


class CoreWatch:
    """Watches the machine, whose `proc` and `sys` are in `root`, from now on to find the load of other processes."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._affinity = root, _affinity()
        self._start = self._now()

    def cores(self, at_least: float = 0.0) -> Cores:
        """Return what the process can get, measured over at least `at_least` seconds; sleep if fewer have passed."""
        time.sleep(max(0.0, self._start[0] + at_least - time.perf_counter()))
        passed, others = (now - start for now, start in zip(self._now(), self._start))
        usable = len(self._affinity) or usable_cores()
        busy = others / passed if passed > 0 else 0.0
        return Cores(usable, 0.0 if busy < _NOISE else min(busy, usable), _quota(self._root))

    def _now(self) -> tuple[float, float]:
        """Return the time, and for how long the usable cores have been busy with other processes, in seconds."""
        names = {f"cpu{number}" for number in self._affinity}
        ticks = 0
        for line in _lines(self._root / "proc/stat"):
            name, *counts = line.split()
            if name in names:
                # Guests' time, which follows steal, is already in user and nice.
                user, nice, system, _idle, _waiting, *interrupts_and_steal = map(int, counts[:8])
                ticks += user + nice + system + sum(interrupts_and_steal)
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def _quota(root: Path) -> float:
    """Return the smallest CPU quota, in cores, of this process's cgroups (version 1 or 2) and those around them."""
    quotas = [math.inf]
    for folder in _cgroups(root):
        version_2 = (line.split() for line in _lines(folder / "cpu.max"))
        version_1 = zip(_lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us"))
        # Without a limit, the number is "max" or -1.
        quotas += [int(limit) / int(period) for limit, period in (*version_2, *version_1) if limit.isdigit()]
    return min(quotas)


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


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line.strip()]
    except OSError:
        return []
