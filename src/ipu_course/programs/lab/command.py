"""The sub-command ``lab``: JupyterLab on the learner's own copy of the notebooks."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from ipu_course.errors import CourseError
from ipu_course.programs.options import positive_integer

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

DESCRIPTION = """Open JupyterLab on your own copy of the notebooks. The copy has no outputs; it is made at the first
start and never overwritten. When the course has a newer version of a lesson, the new one is put beside your copy."""
LARGEST_PORT = 65_535


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser("lab", help="open your own copy of the notebooks", description=DESCRIPTION)
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of your copy (default: my_course, in the clone if you are in one, otherwise here)",
    )
    parser.add_argument(
        "--reset",
        metavar="LESSON",
        help="make a fresh copy of a lesson, such as 02, and keep the old one under another name; do not open it",
    )
    parser.add_argument("--copy-only", action="store_true", help="make or update your copy, and do not open it")
    parser.add_argument(
        "--hosted",
        type=Path,
        metavar="WHEELS",
        help="for a hosted notebook, whose sessions start from scratch: begin each copy with a cell that installs the "
        "course from its two wheels in the folder WHEELS, and do not open them",
    )
    parser.add_argument("--no-browser", action="store_true", help="start JupyterLab without opening a browser")
    parser.add_argument("--port", type=positive_integer, metavar="N", help="JupyterLab's port (default: 8888)")
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="options for JupyterLab itself, after two dashes"
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> None:
    """Do what the parsed arguments say; a JupyterLab that opens takes this process's place. Raises ``CourseError``."""
    from ipu_course.course_files import bring_back
    from ipu_course.lesson_folders import notebook_folder
    from ipu_course.programs.lab.copies import usual_folder
    from ipu_course.programs.lab.set_up_cell import set_up_cell

    if parsed.port is not None and parsed.port > LARGEST_PORT:
        raise CourseError(f"there is no port {parsed.port}; the largest is {LARGEST_PORT}")
    notebooks = notebook_folder()
    if notebooks is None:
        raise CourseError(
            "the course's notebooks were not found: the package was copied without them. Run this in a clone of the "
            "course, or install the course from its wheel, or from a clone with 'pip install -e .'"
        )
    folder = usual_folder(notebooks) if parsed.folder is None else parsed.folder.expanduser()
    set_up = None if parsed.hosted is None else set_up_cell(parsed.hosted, folder)
    try:
        if parsed.reset is not None:
            _reset(parsed.reset, notebooks, folder, set_up)
            return
        _copy(notebooks, folder, set_up)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise CourseError(
            f"your copy in {folder} cannot be written ({reason}); choose another folder with --folder"
        ) from problem
    except ValueError as problem:
        raise CourseError(f"{problem}; {bring_back('notebooks')}") from problem
    if not parsed.copy_only and parsed.hosted is None:
        _start_jupyterlab(folder, parsed)


def _copy(notebooks: Path, folder: Path, set_up: str | None) -> None:
    from ipu_course.programs.lab.copies import make_copies

    changes = make_copies(notebooks, folder, set_up)
    if changes.made:
        count = len(changes.made)
        print(f"Copied {count} {'lesson' if count == 1 else 'lessons'}, without outputs, to your folder {folder}.")
    for newer in changes.newer:
        print(f"Lesson {newer.stem[:2]} is newer than your copy. Your copy stays; the new lesson is {newer}.")


def _reset(lesson: str, notebooks: Path, folder: Path, set_up: str | None) -> None:
    from ipu_course.programs.lab.copies import reset_copy

    copy, old = reset_copy(lesson, notebooks, folder, set_up)
    kept = "" if old is None else f" Your old copy is {old}."
    print(f"You have a fresh copy of lesson {copy.stem[:2]}: {copy}.{kept}")


def _start_jupyterlab(folder: Path, parsed: argparse.Namespace) -> None:
    if find_spec("jupyterlab") is None:
        raise CourseError(
            f"JupyterLab is not installed for {sys.executable}. Install it with "
            "\"python -m pip install 'jupyterlab>=4' ipykernel\" or with make setup in the course's clone. Your "
            f"copy of the notebooks is in {folder}, for any other editor of notebooks"
        )
    command = jupyterlab_command(folder, parsed.port, parsed.no_browser, parsed.options)
    # A kernel registered in the learner's home folder must not take the place of this environment's.
    environment = {"JUPYTER_PREFER_ENV_PATH": "1", **os.environ}
    sys.stdout.flush()
    # JupyterLab takes the place of this process, so Ctrl-C and its exit code are its own.
    os.execve(sys.executable, command, environment)


def jupyterlab_command(folder: Path, port: int | None, no_browser: bool, options: Sequence[str]) -> list[str]:
    """Return the command line that opens JupyterLab on ``folder``."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder.resolve()}"]
    command += [] if port is None else [f"--ServerApp.port={port}"]
    command += ["--no-browser"] if no_browser else []
    # JupyterLab refuses to run as root unless it is told to.
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [*command, *options]
