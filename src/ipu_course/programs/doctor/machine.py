"""The machine: cores and threads, and memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ipu_course.programs.doctor.finding import Finding, notice, ok, problem

THREADS = "OMP_NUM_THREADS"
ROOT = Path("/")
GIB = 2**30
# Measured, in GiB: the kernel of lesson 06 takes 0.7, profiles of ResNet-101 take 1.0, JupyterLab itself 0.2.
LEAST_MEMORY, COMFORTABLE_MEMORY = GIB, 2 * GIB


def judge_threads(cores: int, usable: int, chosen: str) -> Finding:
    """Judge how many of the machine's ``cores`` are ``usable``, and the value ``chosen`` for OMP_NUM_THREADS."""
    what = f"You may use {usable} of {cores} cores, and {THREADS} is {chosen or 'not set'}."
    cure = f"Set {THREADS}={usable} before you start JupyterLab."
    first = chosen.split(",")[0].strip()
    if chosen and not (first.isdigit() and int(first) > 0):
        return notice(what, f"{THREADS} is not a number of threads, so libraries may ignore it.", cure)
    if chosen and int(first) > usable:
        return notice(what, "With more threads than cores, threads wait for each other, and training is slow.", cure)
    if not chosen and usable < cores:
        why = "PyTorch may start a thread for every core of the machine; they then wait for each other, which is slow."
        return notice(what, why, cure)
    return ok(what)


def usable_cores() -> int:
    """Return how many cores the scheduler and a container's quota leave to this process, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    for group in control_groups(ROOT):
        quota, _, period = _value(group, "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def judge_memory(available: int) -> Finding:
    """Judge whether ``available`` bytes are enough for the lessons."""
    what = f"{available / GIB:.1f} GiB of memory is available."
    cure = f"Close other programs and the kernels of other notebooks; {COMFORTABLE_MEMORY // GIB} GiB is comfortable."
    if available < LEAST_MEMORY:
        return problem(what, "A kernel that runs out of memory is killed in the middle of a lesson.", cure)
    if available < COMFORTABLE_MEMORY:
        return notice(what, "Profiles of large models may run slowly, or the kernel may be killed.", cure)
    return ok(what)


def available_memory() -> int:
    """Return the bytes available to this process: those of the machine, below a container's limit."""
    import psutil  # ipykernel brings it: where that is missing, the doctor must still run

    machine = int(psutil.virtual_memory().available)
    for group in control_groups(ROOT):
        limit, used = _value(group, "memory.max"), _value(group, "memory.current")
        if limit.isdigit() and used.isdigit():
            # Files that were read count as used, but the kernel gives up the inactive ones when a program needs memory.
            freed = re.search(r"^inactive_file (\d+)$", _value(group, "memory.stat"), re.MULTILINE)
            left = int(limit) - int(used) + (int(freed[1]) if freed else 0)
            machine = min(machine, max(0, left))
    return machine


def control_groups(root: Path) -> list[Path]:
    """Return this process's control group (version 2) and those around it, each of which may set a limit.

    In a container, the outermost folder that it sees is its own. A service of systemd, such as a learner's server on a
    JupyterHub, has a folder further in, which ``proc`` below ``root`` names.
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    own = mount / next((line[len("0::") :] for line in lines if line.startswith("0::")), "").strip("/")
    return [folder for folder in (own, *own.parents) if folder == mount or mount in folder.parents]


def _value(group: Path, name: str) -> str:
    """Return a value of a control group, empty when it has none."""
    try:
        return (group / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
