"""Settings for every test, those of the course and those of the IPU Model."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections import Counter
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

# Seconds of each unit of work, as `make test TEST_ARGS=--record-durations` measured them.
DURATIONS = Path(__file__).parent / "tests" / "durations.json"
# Files whose tests do not depend on each other: one process would be at them long after the others.
INDEPENDENT = ("tests/test_notebooks.py", "ipu_model/tests/programs/test_programs.py")


def pytest_configure(config: pytest.Config) -> None:
    """Have matplotlib build its font cache now, or choose a folder for it where the home folder is read-only.

    A kernel that has to do that first says so on stderr, and nbval compares stderr.
    """
    if config.getoption("nbval", default=False):
        import_module("matplotlib.font_manager")
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_DurationsRecorder())


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


def _unit(nodeid: str) -> str:
    """What one process does in one go: a file, as a notebook's cells must stay together, or a test of its own."""
    file = nodeid.partition("::")[0]
    return nodeid if file in INDEPENDENT else file


def _recorded() -> dict[str, float]:
    return json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out to xdist's processes by unit; the order is that of `pytest_collection_modifyitems`."""
    from xdist.scheduler import LoadFileScheduling

    class SharedUnits(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    return SharedUnits(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of xdist: the longest unit first, so that all processes end at about the same time.

    A unit without a record may be long.
    """
    if hasattr(config, "workerinput"):
        durations = _recorded()
        items.sort(key=lambda item: -durations.get(_unit(item.nodeid), float("inf")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help=f"write how long tests take to {DURATIONS.name}")


class _DurationsRecorder:
    """Adds up what each unit takes, and writes it down beside the units that did not run this time."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_unit(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        root = DURATIONS.parent.parent
        kept = {unit: seconds for unit, seconds in _recorded().items() if (root / unit.partition("::")[0]).exists()}
        seconds = kept | {unit: round(seconds, 1) for unit, seconds in self._seconds.items()}
        DURATIONS.write_text(json.dumps(seconds, indent=0, sort_keys=True) + "\n", encoding="utf-8")
