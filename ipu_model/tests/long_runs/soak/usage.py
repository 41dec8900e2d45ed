"""What a program holds at one moment, in its own process and in its loader's."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from dataclasses import dataclass
from pathlib import Path

_KIB_PER_MIB = 1024


@dataclass(frozen=True)
class Usage:
    """Resident memory in MiB of this process and of its children, and counts of what could be left behind.

    Attributes:
        shared: maps of the loader's memory and named files in /dev/shm that this process has mapped.
    """

    step: int
    own_mib: float
    loaders_mib: float
    descriptors: int
    threads: int
    processes: int
    shared: int

    @classmethod
    def now(cls, step: int) -> Usage:
        """Measure, after a collection of garbage; Linux only."""
        gc.collect()
        children = multiprocessing.active_children()
        return cls(
            step=step,
            own_mib=_resident_mib(os.getpid()),
            loaders_mib=sum(_resident_mib(child.pid) for child in children if child.pid),
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            processes=len(children),
            shared=_shared_maps(),
        )

    def __str__(self) -> str:
        return (
            f"{self.step:>8} {self.own_mib:>10.1f} {self.loaders_mib:>12.1f} {self.descriptors:>6} {self.threads:>8} "
            f"{self.processes:>10} {self.shared:>7}"
        )


HEADING = f"{'step':>8} {'own MiB':>10} {'loaders MiB':>12} {'files':>6} {'threads':>8} {'processes':>10} {'shared':>7}"


@dataclass(frozen=True)
class Tolerance:
    """How much more memory, in MiB, may be held at the end than after the warm-up; counts may not grow at all."""

    own_mib: float
    loaders_mib: float

    def complaints(self, first: Usage, last: Usage) -> list[str]:
        """Return in words what has grown."""
        found = []
        for name, limit in (
            ("own_mib", self.own_mib), ("loaders_mib", self.loaders_mib),
            ("descriptors", 0), ("threads", 0), ("processes", 0), ("shared", 0),
        ):  # fmt: skip
            before, after = getattr(first, name), getattr(last, name)
            if after - before > limit:
                found.append(f"{name} grew from {before:.1f} to {after:.1f}, more than {limit}")
        return found


def _resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return float(sizes[0]) / _KIB_PER_MIB if sizes else 0.0


def _shared_maps() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if "memfd:poptorch" in line or "/dev/shm/" in line)
