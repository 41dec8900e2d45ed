"""What the whole process is set to: freed memory is kept where glibc offers it, threads wait asleep where GNU's can."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ipu_model.cores import usable_cores

PROGRAM = """
import threading, torch
from ipu_model.compute.session import keep_freed_memory
from ipu_model.compute.threads import wait_asleep
number = torch.get_num_threads()
wait_asleep()  # twice: idle threads are started once
print(keep_freed_memory(), wait_asleep(), [thread.name for thread in threading.enumerate()].count("ipu-model-idle"))
assert torch.get_num_threads() == number
"""
SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "IPU_MODEL_KEEP_MEMORY")
KEPT = str(platform.libc_ver()[0] == "glibc")
# Machines with more cores keep no idle threads.
ASLEEP = "True 1" if sys.platform.startswith("linux") and 1 < usable_cores() <= 16 else "False 0"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, f"{KEPT} {ASLEEP}"),
        ({"IPU_MODEL_KEEP_MEMORY": "0", "OMP_WAIT_POLICY": "passive"}, "False True 0"),
        ({"IPU_MODEL_KEEP_MEMORY": "", "OMP_WAIT_POLICY": "ACTIVE"}, f"{KEPT} False 0"),
        ({"GOMP_SPINCOUNT": "1000000"}, f"{KEPT} False 0"),
    ],
)
def test_the_user_decides_and_idle_threads_do_not_keep_the_program_alive(
    environment: dict[str, str], expected: str
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == expected
