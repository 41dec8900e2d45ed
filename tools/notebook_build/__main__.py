"""Builds the notebooks from their sources, checks that the two agree, tries every answer to their exercises, or takes
the edits of a notebook back into its source."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from ipu_course.lesson_folders import LESSONS_FOLDER
from notebook_build.assemble import assemble
from notebook_build.check import check, findings
from notebook_build.errors import SourceError
from notebook_build.execute import execute
from notebook_build.lesson import NOTEBOOKS, LessonSource, lessons
from notebook_build.lint import lint
from notebook_build.pull import pull
from notebook_build.trial import run_trial
from notebook_build.verdicts import faults, table


def build(lesson: LessonSource) -> list[str]:
    """Build and execute one notebook, save it, and return the findings about its outputs."""
    started = time.monotonic()
    try:
        notebook = execute(assemble(lesson), lesson.notebook.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return [f"not saved, a cell failed:\n{error}"]
    nbformat.validate(notebook)
    nbformat.write(notebook, lesson.notebook)
    print(f"{lesson.name}: {len(notebook.cells)} cells, {time.monotonic() - started:.0f} s", flush=True)
    return findings(notebook)


def check_and_lint(lesson: LessonSource) -> list[str]:
    """Return all that is wrong with a lesson as it is saved."""
    return [*check(lesson), *lint(lesson)]


def attempt_all(lesson: LessonSource) -> list[str]:
    """Try the right and wrong answers of a lesson, print the verdicts, and return those that should be others."""
    trial = run_trial(lesson)
    print(table(trial), flush=True)
    return list(faults(trial))


def pull_edits(lesson: LessonSource, notebook: Path | None, delete: bool) -> None:
    """Take the edits of a notebook into a lesson's source and say what changed."""
    print(f"{lesson.name}: {pull(lesson, notebook or lesson.notebook, delete)}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="notebook_build", description=__doc__)
    parser.add_argument("command", choices=("build", "check", "try", "pull"))
    parser.add_argument(
        "wanted", nargs="*", metavar="NN", help="only lessons whose name starts so; pull: one lesson, then a notebook"
    )
    parser.add_argument("--lessons", dest="folder", type=Path, default=LESSONS_FOLDER, help="the lessons' folders")
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, help="where the notebooks are built")
    parser.add_argument("--delete", action="store_true", help="pull: take cells that the notebook lacks out")
    chosen = parser.parse_args(arguments)
    wanted, edited = tuple(chosen.wanted), None
    if chosen.command == "pull":
        if not wanted or len(wanted) > 2:
            parser.error("pull takes one lesson and maybe a notebook: pull 02 my_course/02_gradient_accumulation.ipynb")
        wanted, edited = wanted[:1], Path(wanted[1]) if len(wanted) > 1 else None
    steps = {"build": build, "check": check_and_lint, "try": attempt_all}
    failed = False
    try:
        for lesson in lessons(wanted, chosen.folder, chosen.notebooks):
            if chosen.command == "pull":
                pull_edits(lesson, edited, chosen.delete)
                continue
            for finding in steps[chosen.command](lesson):
                failed = True
                print(f"{lesson.name}: {finding}", file=sys.stderr)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
