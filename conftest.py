"""Settings for every test, those of the course and those of the IPU Model."""

from __future__ import annotations

import gc
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The notebooks' kernels inherit these: a backend chosen in the shell would keep figures out of the outputs,
# and a kernel registered in the home folder would run in another environment than this one.
os.environ.pop("MPLBACKEND", None)
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"

# Another number of threads gives other last bits, and tests compare results with plain PyTorch's. Kernels inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test, and no notebook that a test runs, may touch the answers of whoever starts the tests. The folder goes
# when this process ends.
_records = tempfile.TemporaryDirectory(prefix="ipu-course-tests-")
os.environ["IPU_COURSE_PROGRESS"] = os.path.join(_records.name, "progress.json")

# A deadline would make a result depend on how busy the machine is. In CI the examples are always the same.
settings.register_profile(
    "course", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("course")


def pytest_configure(config: pytest.Config) -> None:
    """Have matplotlib build its font cache now, or choose a folder for it where the home folder is read-only.

    A kernel that has to do that first says so on stderr, and nbval compares stderr.
    """
    if config.getoption("nbval", default=False):
        import_module("matplotlib.font_manager")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what importing and collecting made out of every later garbage collection: none of it goes away."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's folder."""
    return Path(__file__).resolve().parent


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for the records of a learner who has answered nothing yet."""
    from ipu_course.progress import notes

    path = tmp_path / "mine" / "progress.json"
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(path))
    monkeypatch.setattr(notes, "_waiting", [])
    return path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let xdist's processes share the tests of the lessons' answers, each of which runs a whole lesson.

    With `--dist loadfile` a file's tests stay in one process, as a notebook's cells must. Those of
    tests/test_notebooks.py do not depend on each other, and one process would be at them long after the others.
    """
    from xdist.scheduler import LoadFileScheduling

    class SharedAnswers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith("tests/test_notebooks.py") else super()._split_scope(nodeid)

    return SharedAnswers(config, log) if config.getoption("dist") == "loadfile" else None
