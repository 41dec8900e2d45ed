"""Settings for every test of the IPU Model, with or without the course around it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# The number of threads changes the last bits of results, and tests compare them with plain PyTorch's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline would make a result depend on how busy the machine is. In CI the examples are always the same.
settings.register_profile(
    "ipu_model", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ipu_model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command of `python -m ipu_model` in this process; give its exit code, output and error output."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        from ipu_model.commands import command_line

        try:
            code = command_line.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(str(stopped.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what importing and collecting made out of every later garbage collection: none of it goes away."""
    gc.collect()
    gc.freeze()
