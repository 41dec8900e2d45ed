"""May the course write where a learner's progress and notebooks go?"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ipu_course.doctor.finding import Finding, notice, ok
from ipu_course.progress.place import VARIABLE, progress_file


def check_progress() -> Finding:
    """The learner's progress file."""
    try:
        return judge_progress(progress_file())
    except RuntimeError:  # no home folder
        return judge_progress(None)


def judge_progress(file: Path | None) -> Finding:
    """``file``: where progress would go, None when there is no place for it. Nothing is left behind."""
    why = "predictions and checks are forgotten when the kernel ends"
    cure = f"set {VARIABLE} to a file that you may write, before JupyterLab starts"
    if file is None:
        return notice("no home folder for the progress file", why, cure)
    if file.is_dir() or (file.exists() and not os.access(file, os.R_OK | os.W_OK)):
        return notice(f"the progress file {file} cannot be read and written", why, cure)
    # The folder is made when there is something to write: what counts is the nearest one that exists.
    folder = next((parent for parent in file.parents if parent.exists()), file.parent)
    if not may_write(folder):
        return notice(f"the progress file {file} cannot be made: no permission to write in {folder}", why, cure)
    return ok(f"progress goes to {file}")


def check_current_folder() -> Finding:
    """The folder that notebooks are saved in."""
    return judge_current_folder(Path.cwd())


def judge_current_folder(folder: Path) -> Finding:
    """A read-only folder runs every lesson, but saves none."""
    if may_write(folder):
        return ok("files can be saved here")
    return notice(
        f"no permission to write in {folder}",
        "changed notebooks cannot be saved, and programs leave no reports",
        "copy the course to a folder of your own and start there",
    )


def may_write(folder: Path) -> bool:
    """Whether a file can be made in a folder; tried, because permissions do not tell all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
