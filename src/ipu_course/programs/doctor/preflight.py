"""Executes a whole lesson in a fresh kernel, as `make preflight` does before a workshop."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from ipu_course.lesson_folders import notebook_folder
from ipu_course.programs.doctor.finding import INSTALL, Finding, notice, ok, problem
from ipu_course.progress.store import VARIABLE

KERNEL_SECONDS = 60


def run_lesson(name: str, seconds: float, folder: Path | None = None) -> Finding:
    """Execute the lesson whose name starts with ``name`` in a fresh kernel, for at most about ``seconds``."""
    folder = folder or notebook_folder()
    lessons = [] if folder is None else sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    lesson = next((each for each in lessons if each.stem.startswith(name)), None)
    if lesson is None:
        known = ", ".join(each.stem for each in lessons) or "none"
        return problem(f"No lesson starts with {name!r}.", "Nothing was executed.", f"The lessons here are: {known}.")
    try:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError:
        return notice("nbclient is not installed.", "No lesson was executed.", INSTALL)
    started, why = time.monotonic(), "Learners would have the same problem."
    try:
        _execute(lesson, started + seconds)
    except CellTimeoutError:
        cure = "Close other programs and try again; on a slow machine, allow more time with --seconds."
        return problem(f"{lesson.stem} did not end within {seconds:.0f} seconds.", why, cure)
    except DeadKernelError:
        cure = "Check the line on memory above, close other programs and try again."
        return problem(f"The kernel died in {lesson.stem}.", why, cure)
    except Exception as error:
        told = (error.ename, error.evalue) if isinstance(error, CellExecutionError) else (type(error).__name__, error)
        return problem(f"{lesson.stem} failed: {told[0]}: {told[1]}", why, f"Open {lesson} and run all cells.")
    return ok(f"{lesson.stem} ran in a fresh kernel in {time.monotonic() - started:.0f} seconds.")


def _execute(lesson: Path, deadline: float) -> None:
    import nbformat
    from nbclient import NotebookClient

    def time_left(cell: object = None) -> int:
        return max(1, int(deadline - time.monotonic()))

    with tempfile.TemporaryDirectory() as scratch:
        # A trial is nobody's progress, and a backend chosen in the shell would keep figures out of the notebook.
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        environment[VARIABLE] = str(Path(scratch) / "progress.json")
        client = NotebookClient(
            nbformat.read(str(lesson), as_version=4),
            timeout_func=time_left,
            startup_timeout=min(KERNEL_SECONDS, time_left()),
            extra_arguments=["--log-level=ERROR"],  # its remarks on its own connections would confuse
            resources={"metadata": {"path": str(lesson.parent)}},
        )
        client.execute(env=environment)
