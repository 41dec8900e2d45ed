"""Settings for every test of the IPU Model, with or without the course around it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The number of threads changes the last bits of results, and tests compare them with plain PyTorch's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline would make a result depend on how busy the machine is. In CI the examples are always the same.
settings.register_profile(
    "ipu_model", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ipu_model")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what importing and collecting made out of every later garbage collection: none of it goes away."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 64 KiB, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
