"""Threads that wait asleep: where the user has not decided, and OpenMP is GNU's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ipu_model.cores import usable_cores

PROGRAM = """
import threading, torch
from ipu_model.compute.threads import wait_asleep
number = torch.get_num_threads()
print(wait_asleep(), wait_asleep(), [each.name for each in threading.enumerate()].count("ipu-model-idle"))
assert torch.get_num_threads() == number
"""


def answer(**environment: str) -> str:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PyTorch has GNU's OpenMP on Linux")
@pytest.mark.skipif(not 1 < usable_cores() <= 16, reason="machines with more cores keep no idle threads")
def test_idle_threads_are_started_once_and_do_not_keep_the_program_alive() -> None:
    assert answer() == "True True 1"


def test_the_user_decides() -> None:
    assert answer(OMP_WAIT_POLICY="passive") == "True True 0"
    assert answer(OMP_WAIT_POLICY="ACTIVE") == "False False 0"
    assert answer(GOMP_SPINCOUNT="1000000") == "False False 0"
