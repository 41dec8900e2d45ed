"""Start programs with engine options in their environment, and find the reports that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping

import torch
from torch import nn

import poptorch
from ipu_course import engine, show
from ipu_course.errors import CourseError
from ipu_course.exercises import open_parts
from ipu_course.models import WithLoss
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile

VARIABLE = "POPLAR_ENGINE_OPTIONS"
PROGRAM = "ipu_course.lessons.reading_a_profile.digits_pipeline"
FOLDER = "report"
PAGE, TRACE = "report.html", "trace.json"
READERS = {
    PAGE: "you, in a browser",
    "profile.json": "programs: python -m ipu_model compare",
    "program.ipu": "what-ifs: python -m ipu_model advise",
    TRACE: "Perfetto, a viewer for traces",
}
OURS = json.dumps({"autoReport.all": "true", "autoReport.directory": FOLDER})

EngineOptions = Callable[..., str]


@dataclass(frozen=True)
class WrittenReport:
    """A report that a program has left: the engine options, its files by name, its trace, and its profile."""

    options: str
    files: tuple[str, ...]
    trace: Mapping[str, Any]
    profile: Profile


@contextmanager
def engine_options_set(text: str) -> Iterator[None]:
    """Set the engine options of this process's environment for a while."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = text
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def compile_something(text: str) -> None:
    """Compile a small model with these engine options. Raises ``poptorch.Error`` for options that it refuses."""
    options = poptorch.Options().showCompilationProgressBar(False).useOfflineIpuTarget()
    network = WithLoss(nn.Linear(8, 4))
    with engine_options_set(text):
        model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))
        model.compile(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64))


@engine.needs_the_model
def start_program(engine_options: EngineOptions) -> WrittenReport:
    """Start the lesson's program with the learner's engine options; with ours while those write no trace."""
    if not open_parts("engine_options", engine_options):
        try:
            return _started(engine_options(FOLDER))
        except Exception as problem:  # whatever the learner's function does, the lesson goes on
            print(f"With your engine options, {problem}. The course's own are used instead.")
    return _started(OURS)


@lru_cache(maxsize=4)
def _started(text: str) -> WrittenReport:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, VARIABLE: text}
        command = [sys.executable, "-m", PROGRAM]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CourseError(f"the program ends with an error: {done.stderr.strip().splitlines()[-1]}")
        report = Path(folder) / FOLDER
        if not (report / TRACE).exists():
            raise CourseError(f"the program writes no {TRACE} into {FOLDER}")
        trace = json.loads((report / TRACE).read_text(encoding="utf-8"))
        files = tuple(sorted(path.name for path in report.iterdir()))
        return WrittenReport(text, files, trace, engine.read_report(report))


def show_files(report: WrittenReport) -> None:
    """Show the command that was run, what it wrote, and for whom."""
    if report is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    print(f"$ {VARIABLE}='{report.options}' \\\n    python -m {PROGRAM}")
    show.table([{"file": name, "for": READERS.get(name, "")} for name in report.files], index="file")


def compare_reports(before: Profile, after: Profile) -> None:
    """Write two reports into folders, and print what ``python -m ipu_model compare`` says of them."""
    print("$ python -m ipu_model compare before after")
    with tempfile.TemporaryDirectory() as folder:
        for name, profile in (("before", before), ("after", after)):
            engine.write_report(profile, Path(folder) / name)
        command = [sys.executable, "-m", "ipu_model", "compare", "before", "after"]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    print((done.stdout or done.stderr).strip())
