"""Keeping freed memory: only where the C library offers it, and only if it is wanted."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = "from ipu_model.compute.session import keep_freed_memory as keep; print(keep())"


def answer(**environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_glibc_agrees() -> None:
    assert answer(IPU_MODEL_KEEP_MEMORY="") == "True"


def test_the_environment_turns_it_off() -> None:
    assert answer(IPU_MODEL_KEEP_MEMORY="0") == "False"
