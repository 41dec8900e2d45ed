"""Let PyTorch's waiting threads sleep, because a spinning thread can take the core from the thread that it waits for.

GNU's OpenMP, which PyTorch uses on Linux, lets waiting threads spin for milliseconds; on busy cores that makes ops many
times slower. If a process has more OpenMP threads than there are cores, waiting threads spin for microseconds only and
then sleep. `OMP_WAIT_POLICY` chooses this as well, but only before OpenMP is loaded, and `import torch` loads it. We
therefore start as many additional threads as there are cores; they sleep all the time.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

import torch

from ipu_model.compute.thread_setting import Threads
from ipu_model.cores import usable_cores

# PyTorch gives an op another thread for every so many elements (at::internal::GRAIN_SIZE).
GRAIN = 32768
# On machines with more cores, so many additional threads are costly, and free cores are easier to find.
_MOST_CORES = 16
_PATIENCE_SECONDS = 10.0


def wait_asleep() -> bool:
    """Let waiting threads of this process sleep, from now on; return whether they do.

    `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` decide instead, if they are set.
    """
    policy = os.environ.get("OMP_WAIT_POLICY", "").strip().lower()
    if policy or "GOMP_SPINCOUNT" in os.environ:
        return policy == "passive"
    return 1 < usable_cores() <= _MOST_CORES and _is_gnu() and _has_idle_threads()


@cache
def _has_idle_threads() -> bool:
    """Start the idle threads, once per process: each Python thread that computes has OpenMP threads of its own."""
    started = threading.Event()

    def start_them_and_sleep() -> None:
        count = usable_cores()
        with Threads(count, fixed=True).in_use():
            torch.ones(count * GRAIN, dtype=torch.float32, device="cpu").add_(1)
        started.set()
        threading.Event().wait()

    threading.Thread(target=start_them_and_sleep, name="ipu-model-idle", daemon=True).start()
    return started.wait(_PATIENCE_SECONDS)


@cache
def _is_gnu() -> bool:
    """Say whether the OpenMP that this process has loaded is GNU's."""
    try:
        return "libgomp" in Path("/proc/self/maps").read_text()
    except OSError:
        return False
