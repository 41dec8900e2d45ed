"""Run the test files of a folder, each in its own processes, so that a crash or a hang loses only one test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from upstream_tests.outcomes import Kind, Outcome, recorded

_POLL_IN_S = 0.1
_ALL_RAN, _SOME_FAILED, _NONE_COLLECTED = 0, 1, 5
"""Exit codes of pytest that add nothing to the record."""
_INTERRUPTED = 2
"""pytest also exits with this if a file cannot be imported, which the record says."""
# Settings of the shell must not decide what a test finds.
_CLEANED = ("POPTORCH_", "POPLAR_", "POPART_", "PVTI_", "IPU_MODEL", "OMPI_", "PYTEST_")


@dataclass(frozen=True)
class Settings:
    """Where the tests are and how to run them; `patience` is for one test, in seconds; `arguments` go to pytest."""

    tests: Path
    patience: float = 600.0
    workers: int = 2
    arguments: tuple[str, ...] = ()


def files_below(tests: Path) -> list[Path]:
    """Return the files that pytest would take for tests, in order."""
    found = {*tests.rglob("test_*.py"), *tests.rglob("*_test.py")}
    hidden = {path for path in found if any(part.startswith(".") for part in path.relative_to(tests).parts)}
    return sorted(found - hidden)


def run(settings: Settings, files: Sequence[Path]) -> Generator[list[Outcome], None, None]:
    """Run the files and yield the outcomes of each, in order; an interrupt ends the processes."""
    stop = threading.Event()
    with ThreadPoolExecutor(settings.workers) as pool:
        try:
            yield from pool.map(lambda file: run_file(settings, file, stop), files)
        finally:
            stop.set()


def run_file(settings: Settings, file: Path, stop: threading.Event | None = None) -> list[Outcome]:
    """Run one file; after a test that ended the process or hung, continue with the next one.

    Once `stop` is set, the process is ended and what was not run is missing from the outcomes.
    """
    stop = stop or threading.Event()
    outcomes: list[Outcome] = []
    while True:
        with tempfile.TemporaryDirectory(prefix="upstream-tests-") as folder:
            found, end = _one_process(settings, file, Path(folder), [outcome.test for outcome in outcomes], stop)
        if stop.is_set():
            return outcomes
        finished = [outcome for outcome in found if outcome.kind is not Kind.STARTED]
        broken = {outcome.test for outcome in found} - {outcome.test for outcome in finished}
        outcomes += finished
        outcomes += [Outcome(test, Kind.FAILED, end) for test in broken]
        if not broken:
            return outcomes if found or not end else [*outcomes, Outcome(_name(settings, file), Kind.FAILED, end)]


def _name(settings: Settings, file: Path) -> str:
    return file.relative_to(settings.tests).as_posix()


def _one_process(
    settings: Settings, file: Path, folder: Path, done: Sequence[str], stop: threading.Event
) -> tuple[list[Outcome], str]:
    """Return what one process recorded, and how it ended if it did not end normally."""
    record, known, output = folder / "record", folder / "done", folder / "output"
    known.write_text("\n".join(done), encoding="utf-8")
    # pytest must not find the settings of a project around the tests, nor leave anything in the checkout.
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\npython_files = test_*.py *_test.py\n", encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    command = [
        sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider", "-p", "upstream_tests.plugin",
        "-c", str(ini), f"--rootdir={settings.tests}", f"--confcutdir={settings.tests}", f"--record={record}",
        f"--done={known}", *settings.arguments,
    ]  # fmt: skip
    with output.open("wb") as log, subprocess.Popen(
        command, cwd=work, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    ) as process:  # fmt: skip
        ended = _wait(process, record, settings.patience, stop)
    return list(recorded(record)), _end(ended, output, settings.patience)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEANED)}
    # The tests run in another working directory.
    path = [os.path.abspath(entry) for entry in kept.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path.insert(0, str(Path(__file__).resolve().parents[1]))
    # Nor must pytest's plugins that happen to be installed, which also take a second or more to import; one that tests
    # need can be named after --: -p NAME.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"OMP_NUM_THREADS": "1", **kept, **alone, "PYTHONPATH": os.pathsep.join(path)}


def _wait(process: subprocess.Popen[bytes], record: Path, patience: float, stop: threading.Event) -> int | None:
    """Return the exit code; None if it was told to stop, or nothing was recorded for too long: the process is ended."""
    size, since = -1, time.monotonic()
    while True:
        try:
            return process.wait(_POLL_IN_S)
        except subprocess.TimeoutExpired:
            now = record.stat().st_size if record.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            if stop.is_set() or time.monotonic() - since > patience:
                # The process leads its own session, so this also ends everything that it has started.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None


def _end(code: int | None, output: Path, patience: float) -> str:
    if code is None:
        return f"did not end within {patience:g} s"
    if code in (_ALL_RAN, _SOME_FAILED, _INTERRUPTED, _NONE_COLLECTED):
        return ""
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"pytest ended with exit code {code}: {lines[-1] if lines else 'no output'}"
