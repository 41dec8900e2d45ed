"""Which malloc a process uses, which others a machine has, and what they cost, measured in processes of their own."""

from __future__ import annotations

import ctypes.util
import glob
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from ipu_course import show

MAPS = Path("/proc/self/maps")
SYSTEM = "the C library's"
UNKNOWN = "an unknown (only Linux tells)"
NAMES = ("tbbmalloc", "jemalloc", "tcmalloc")
LIBRARIES = {"tbbmalloc": ("tbbmalloc_proxy",), "jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc", "tcmalloc_minimal")}
FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib")
RUNS = 3
WORK = """\
import time
start = time.perf_counter()
for _ in range(2):
    graph = {number: [str(number), (number, [number]), {"inputs": [number + 1]}] for number in range(40_000)}
    del graph
print(time.perf_counter() - start)
"""


def allocator_in_maps(maps: str) -> str:
    """Return which allocator the text of a ``/proc/PID/maps`` names; without one of ``NAMES``, the C library's."""
    libraries = {Path(line.split()[-1]).name for line in maps.splitlines() if "/" in line}
    found = [name for name in NAMES if any(library.startswith(f"lib{name}") for library in libraries)]
    return found[0] if found else SYSTEM


def loaded_allocator() -> str:
    """Return which allocator this process uses, where it can tell."""
    if not MAPS.exists():
        return UNKNOWN
    return allocator_in_maps(MAPS.read_text(encoding="utf-8"))


def find_allocators() -> dict[str, str]:
    """Return other allocators that this machine has: what to write into ``LD_PRELOAD``, by name."""
    if not sys.platform.startswith("linux"):
        return {}
    found = {}
    for name, libraries in LIBRARIES.items():
        paths = [path for library in libraries for path in _paths_of(library)]
        if paths:
            found[name] = f"{_beside(paths[0])}{paths[0]}"
    return found


def _beside(path: str) -> str:
    """Return the library, with a colon, that tbbmalloc's proxy needs and does not find outside the system's folders."""
    needed = path.replace("libtbbmalloc_proxy", "libtbbmalloc")
    return f"{needed}:" if needed != path and Path(needed).exists() else ""


def _paths_of(library: str) -> list[str]:
    known = ctypes.util.find_library(library)
    here = [path for folder in (f"{sys.prefix}/lib", *FOLDERS) for path in glob.glob(f"{folder}/lib{library}.so*")]
    return sorted(here, key=len) or ([known] if known else [])


@dataclass(frozen=True)
class AllocatorRun:
    """What a process said: the best of a few times in seconds, and the allocator that it had loaded."""

    seconds: float
    loaded: str


def time_allocation(environment: Mapping[str, str], runs: int = RUNS) -> AllocatorRun | None:
    """Measure many small allocations in processes with this ``environment``; Python's own allocator is switched off.

    Return ``None`` if such a process does not run, as with a library that lacks another one.
    """
    program = f"{WORK}print(open('{MAPS}').read())" if MAPS.exists() else f"{WORK}print()"
    settings = {**environment, "PYTHONMALLOC": "malloc"}
    ended = [
        subprocess.run([sys.executable, "-S", "-c", program], env=settings, check=False, capture_output=True, text=True)
        for _ in range(runs)
    ]
    if any(each.returncode for each in ended):
        return None
    told = [each.stdout.split("\n", 1) for each in ended]
    loaded = allocator_in_maps(told[0][1]) if MAPS.exists() else UNKNOWN
    return AllocatorRun(min(float(seconds) for seconds, _ in told), loaded)


def show_allocators() -> None:
    """Show what each allocator of this machine takes for many small allocations, measured in processes of their own."""
    print(f"This process uses {loaded_allocator()} malloc.")
    others = find_allocators()
    environments = {SYSTEM: dict(os.environ), **{name: preloading(path) for name, path in others.items()}}
    rows = []
    for name, environment in environments.items():
        run = time_allocation(environment)
        loaded, seconds = ("none: it did not start", "-") if run is None else (run.loaded, f"{run.seconds:.2f} s")
        rows.append({"malloc": name, "found in the process": loaded, "measured here": seconds})
    show.table(rows, index="malloc")
    if not others:
        print("No other one is installed here. On Linux, `pip install tbb` brings tbbmalloc.")


def preloading(library: str) -> dict[str, str]:
    """Return this process's environment with a library that other programs load first."""
    before = os.environ.get("LD_PRELOAD")
    return {**os.environ, "LD_PRELOAD": f"{library}:{before}" if before else library}
