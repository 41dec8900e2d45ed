"""Executes a whole lesson in a fresh kernel, as `make preflight` does before a workshop."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ipu_course.lesson_folders import notebook_folder
from ipu_course.programs.doctor.finding import Finding, notice, ok, problem
from ipu_course.programs.doctor.packages_check import INSTALL
from ipu_course.progress.place import VARIABLE

FIRST_LESSON = "00"
SECONDS = 300.0
KERNEL_SECONDS = 60


def find_lesson(name: str, folder: Path | None) -> Path | Finding:
    """The notebook whose name starts with ``name``, or the finding that there is none."""
    lessons = [] if folder is None else sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    for lesson in lessons:
        if lesson.stem.startswith(name):
            return lesson
    known = ", ".join(lesson.stem for lesson in lessons) or "none"
    return problem(
        f"no lesson starts with {name!r}", "there is nothing to execute", f"name one of the lessons here: {known}"
    )


def run_lesson(name: str = FIRST_LESSON, seconds: float = SECONDS, folder: Path | None = None) -> Finding:
    """Execute a lesson in a fresh kernel and say how long it took; ended after about ``seconds``."""
    lesson = find_lesson(name, notebook_folder() if folder is None else folder)
    if isinstance(lesson, Finding):
        return lesson
    try:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError:
        return notice("nbclient is not installed", "no lesson was executed", INSTALL)
    started = time.monotonic()
    why = "learners would see the same"
    try:
        _execute(lesson, started + seconds)
    except CellTimeoutError:
        cure = "close other programs and try again; on a slow machine allow more with --seconds"
        return problem(f"{lesson.stem} did not end within {seconds:.0f} seconds", why, cure)
    except DeadKernelError:
        return problem(f"the kernel died in {lesson.stem}", why, "see memory above; close other programs and try again")
    except Exception as error:
        told = (error.ename, error.evalue) if isinstance(error, CellExecutionError) else (type(error).__name__, error)
        cure = f"open {lesson} in JupyterLab and run all cells"
        return problem(f"{lesson.stem} failed: {told[0]}: {told[1]}", why, cure)
    return ok(f"{lesson.stem} executed in a fresh kernel in {time.monotonic() - started:.0f} seconds")


def _execute(lesson: Path, deadline: float) -> None:
    import nbformat
    from nbclient import NotebookClient

    def time_left(cell: Any = None) -> int:
        return max(1, int(deadline - time.monotonic()))

    notebook = nbformat.read(str(lesson), as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        # A trial is nobody's progress, and a backend chosen in the shell would keep figures out of the notebook.
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        environment[VARIABLE] = str(Path(scratch) / "progress.json")
        client = NotebookClient(
            notebook,
            timeout_func=time_left,
            startup_timeout=min(KERNEL_SECONDS, time_left()),
            extra_arguments=["--log-level=ERROR"],  # its remarks on its own connections would confuse
            resources={"metadata": {"path": str(lesson.parent)}},
        )
        client.execute(env=environment)
