"""Cores and threads, and memory."""

from __future__ import annotations

import os
from pathlib import Path

from ipu_course.programs.doctor.finding import Finding, notice, ok, problem

GIB = 2**30
# Measured, in GiB: the kernel of lesson 06 takes 0.7, profiles of ResNet-101 take 1.0, JupyterLab itself 0.2.
LEAST_MEMORY, COMFORTABLE_MEMORY = GIB, 2 * GIB


def check_threads() -> Finding:
    """Cores that this process may use, against the threads that torch will start."""
    return judge_threads(os.cpu_count() or 1, usable_cores(), os.environ.get("OMP_NUM_THREADS", ""))


def judge_threads(cores: int, usable: int, chosen: str) -> Finding:
    """``cores`` the machine has, ``usable`` ones a scheduler or container leaves us, ``chosen``: OMP_NUM_THREADS."""
    what = f"{usable} of {cores} cores usable, OMP_NUM_THREADS {f'= {chosen}' if chosen else 'not set'}"
    cure = f"set OMP_NUM_THREADS={usable} before JupyterLab starts"
    first = chosen.split(",")[0].strip()
    if chosen and not (first.isdigit() and int(first) > 0):
        return notice(what, "OMP_NUM_THREADS is not a number of threads, and libraries may ignore it", cure)
    if chosen and int(first) > usable:
        return notice(what, "more threads than cores wait for each other: training takes many times as long", cure)
    if not chosen and usable < cores:
        return notice(
            what, "torch may start a thread for every core of the machine, and they wait for each other", cure
        )
    return ok(what)


def usable_cores() -> int:
    """Cores that the scheduler and a container's quota leave to this process, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _control_group("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, int(quota[0]) // int(quota[1]))
    return max(1, cores)


def check_memory() -> Finding:
    """Memory that is free for the lessons now."""
    return judge_memory(available_memory())


def judge_memory(available: int | None) -> Finding:
    """``available`` bytes; None where this system does not tell."""
    if available is None:
        return ok("this system does not tell how much memory is free")
    what = f"{available / GIB:.1f} GiB of memory available"
    cure = f"close other programs and notebooks' kernels; {COMFORTABLE_MEMORY // GIB} GiB are comfortable"
    if available < LEAST_MEMORY:
        return problem(what, "a kernel that runs out of memory is ended in the middle of a lesson", cure)
    if available < COMFORTABLE_MEMORY:
        return notice(what, "profiles of large models may run slowly or end the kernel", cure)
    return ok(what)


def available_memory() -> int | None:
    """Bytes available to this process: of the machine, and below a container's limit; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical_memory()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in values:
        return _physical_memory()
    machine = int(values["MemAvailable"].split()[0]) * 1024
    limit, used = _control_group("memory.max"), _control_group("memory.current")
    if limit.isdigit() and used.isdigit():
        return min(machine, max(0, int(limit) - int(used)))
    return machine


def _physical_memory() -> int | None:
    # macOS tells the whole; what is free there changes with its cache and says little.
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _control_group(name: str) -> str:
    """A value of the container's control group (version 2), empty when there is none."""
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
