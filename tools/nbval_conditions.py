"""Run `pytest --nbval` on the notebooks under the conditions of users: `make nbval-conditions` (Linux).

Prints a table with a line for each condition and one for each notebook, which must take less than a minute.
With --record, the notebooks' seconds are written to notebooks/measured.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
MOST_SECONDS = 60
PYTEST = (sys.executable, "-m", "pytest", "-q", "--nbval")
# One thread: the notebooks are measured as on a machine whose other cores are busy with a browser.
THREADS = {"OMP_NUM_THREADS": "1"}
LOOPBACK = ("unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
# What keeps PyTorch, MKL and oneDNN from newer instructions, by the newest that are left. Sums of floats differ in the
# last bits from processor to processor, so an output with too many digits holds only on the machine that built it.
OLDER_PROCESSORS = {
    "SSE4": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
DEAD_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")


@dataclass(frozen=True)
class Condition:
    """One way to run the notebooks: `prefix` goes before pytest's command, `paths` after it."""

    name: str
    paths: Sequence[str]
    folder: Path = ROOT
    prefix: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    most_seconds: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a condition ended; `report` is pytest's own."""

    condition: Condition
    passed: bool
    seconds: float
    report: str

    @property
    def verdict(self) -> str:
        if not self.passed:
            return "FAILED"
        most = self.condition.most_seconds
        return "ok" if most is None or self.seconds < most else f"TOO SLOW, {most:.0f} s at most"


def run(condition: Condition) -> Outcome:
    """Run pytest under one condition."""
    environment = {**os.environ, **THREADS, **condition.environment}
    command = [*condition.prefix, *PYTEST, *condition.paths]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=condition.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return Outcome(condition, done.returncode == 0, time.monotonic() - started, done.stdout)


def each_alone(notebooks: Sequence[Path]) -> Iterator[Condition]:
    """Yield each notebook by itself, timed from the command to its end."""
    for notebook in notebooks:
        yield Condition(notebook.stem, [str(notebook.relative_to(ROOT))], most_seconds=MOST_SECONDS)


def all_together(notebooks: Sequence[Path], scratch: Path) -> Iterator[Condition]:
    """Yield what may differ between users but the machine: place, order, network, a second run, permissions."""
    relative = [str(notebook.relative_to(ROOT)) for notebook in notebooks]
    absolute = [str(notebook) for notebook in notebooks]
    yield Condition("from /, absolute paths", absolute, Path("/"))
    yield Condition("in reversed order", relative[::-1])
    for newest, variables in OLDER_PROCESSORS.items():
        yield Condition(f"on a processor with {newest}", relative, environment=variables)
    yield offline(relative)
    home = scratch / "new home"
    home.mkdir()
    for time_of_run in ("first", "second"):
        yield Condition(f"in a new home, {time_of_run} run", relative, environment={"HOME": str(home)})
    yield read_only(relative, scratch)


def offline(paths: Sequence[str]) -> Condition:
    """Return the condition of a room without a network: a namespace with loopback only, where the system allows it."""
    if shutil.which("unshare") and subprocess.run([*LOOPBACK, "true"], stderr=subprocess.DEVNULL).returncode == 0:
        return Condition("offline (network namespace)", paths, prefix=LOOPBACK)
    refusing = {"PYTHONPATH": search_path(ROOT / "tools" / "offline"), **DEAD_PROXY}
    return Condition("offline (sockets refused)", paths, environment=refusing)


def read_only(paths: Sequence[str], scratch: Path) -> Condition:
    """Return the condition of a clone and a home folder that may not be written to."""
    clone, home = scratch / "clone", scratch / "home"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, clone, ignore=skipped)
    home.mkdir()
    for folder in (clone, home):
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
    sources = search_path(clone / "src", clone / "ipu_model" / "src")
    # Permissions bind root, too, once it may not override them.
    prefix = ("setpriv", "--bounding-set=-dac_override") if os.getuid() == 0 else ()
    environment = {"HOME": str(home), "PYTHONPATH": sources, "XDG_DATA_HOME": "", "PYTHONDONTWRITEBYTECODE": "1"}
    return Condition("read-only clone and home", paths, clone, prefix, environment)


def search_path(*folders: Path) -> str:
    """Return a PYTHONPATH that begins with the given folders."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def machine() -> str:
    """Return this machine in words, without its name."""
    processor = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    return f"{os.cpu_count()} cores ({processor}), {platform.system()}, Python {platform.python_version()}"


def record(outcomes: Sequence[Outcome]) -> None:
    """Write what each notebook took to notebooks/measured.json."""
    seconds = {outcome.condition.name: round(outcome.seconds, 1) for outcome in outcomes}
    command = "OMP_NUM_THREADS=1 pytest --nbval notebooks/NN_topic.ipynb"
    content = {"machine": machine(), "command": command, "seconds": seconds}
    (NOTEBOOKS / "measured.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def tried(conditions: Iterator[Condition]) -> list[Outcome]:
    """Run conditions one after another, print a line of the table for each, and return the outcomes."""
    outcomes = []
    for condition in conditions:
        outcome = run(condition)
        print(f"{condition.name:32} {outcome.seconds:6.1f} s  {outcome.verdict}", flush=True)
        if not outcome.passed:
            print("\n".join(f"    {line}" for line in outcome.report.splitlines()[-40:]), flush=True)
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="only notebooks whose name starts so")
    parser.add_argument("--record", action="store_true", help="write the notebooks' seconds to notebooks/measured.json")
    parser.add_argument("--times-only", action="store_true", help="only each notebook by itself")
    chosen = parser.parse_args()
    if chosen.record and chosen.lessons:
        parser.error("--record writes the seconds of all notebooks, measured on one machine: call it without lessons")
    notebooks = [
        each for each in sorted(NOTEBOOKS.glob("*.ipynb")) if each.name.startswith(tuple(chosen.lessons or [""]))
    ]
    if not notebooks:
        parser.error(f"no notebook starts with {' or '.join(chosen.lessons)}")
    alone = tried(each_alone(notebooks))
    together: list[Outcome] = []
    if not chosen.times_only:
        with tempfile.TemporaryDirectory() as scratch:
            together = tried(all_together(notebooks, Path(scratch)))
    if chosen.record and all(outcome.verdict == "ok" for outcome in alone):
        record(alone)
    return int(any(outcome.verdict != "ok" for outcome in [*alone, *together]))


if __name__ == "__main__":
    sys.exit(main())
