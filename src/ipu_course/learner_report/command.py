"""The sub-command ``report``: the learner's page, the records as JSON, or a new beginning."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_course.errors import CourseError

if TYPE_CHECKING:
    # argparse's class of sub-parsers has no public name, and is generic only for type checkers.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = """Write a page of what you answered so far: predictions, exercises, the ladder. It is made from a file
on this machine; nothing is sent anywhere."""
DEFAULT_OUTPUT = "ipu_course_report.html"
LONGEST_START = 2000


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "report", help="your predictions, exercises and ladder so far, as one page", description=DESCRIPTION
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"the page (default: {DEFAULT_OUTPUT})")
    parser.add_argument("--open", action="store_true", help="show the page in your browser")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print the records as JSON, write no page")
    kind.add_argument("--reset", action="store_true", help="begin anew; the records so far stay as a backup")
    parser.add_argument("--yes", action="store_true", help="with --reset: do not ask")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> None:
    """Do what the parsed arguments say. Raises ``CourseError`` when it cannot be done."""
    _refuse_what_means_nothing(parsed)
    if parsed.reset:
        _reset(parsed.yes)
    elif parsed.json:
        from ipu_course.progress import read_progress
        from ipu_course.progress.file_format import to_text

        progress = read_progress()
        if progress.problem is not None:
            print(progress.problem, file=sys.stderr)
        print(to_text(progress), end="")
    else:
        _write_page(parsed.output or Path(DEFAULT_OUTPUT), parsed.open)


def _refuse_what_means_nothing(parsed: argparse.Namespace) -> None:
    if parsed.yes and not parsed.reset:
        raise CourseError("--yes answers the question of --reset; give both, or neither")
    if (parsed.json or parsed.reset) and (parsed.output is not None or parsed.open):
        raise CourseError("--output and --open are about the page, which --json and --reset do not write")


def _write_page(output: Path, show: bool) -> None:
    from datetime import date

    from ipu_course.learner_report.page import EMPTY, report_page
    from ipu_course.progress import read_progress

    progress = read_progress()
    _refuse_to_overwrite(output)
    try:
        output.write_text(report_page(progress, date.today()), encoding="utf-8")
    except OSError as problem:
        raise CourseError(
            f"{output} cannot be written ({problem.strerror}); choose another file with --output"
        ) from problem
    if progress.problem is not None:
        print(progress.problem)
    if progress.empty:
        print(EMPTY)
    print(f"Your report: {output}")
    if show:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            print("No browser was found: open the file yourself.")


def _refuse_to_overwrite(output: Path) -> None:
    """Raise ``CourseError`` unless ``output`` is free or a report of this course."""
    from ipu_course.learner_report.page import is_own_page

    if not output.exists():
        return
    start = ""
    if output.is_file():
        try:
            with output.open(encoding="utf-8", errors="replace") as file:
                start = file.read(LONGEST_START)
        except OSError as problem:
            raise CourseError(
                f"{output} cannot be read ({problem.strerror}); choose another with --output"
            ) from problem
    if not is_own_page(start):
        raise CourseError(f"{output} is there already and is no report of this course; choose another with --output")


def _reset(sure: bool) -> None:
    from ipu_course.progress.place import progress_file
    from ipu_course.progress.store import reset

    if not sure:
        if not sys.stdin.isatty():
            raise CourseError("--reset asks on a terminal, and this is none; say --reset --yes to begin anew")
        if input("Begin anew? The records so far are kept as a backup. [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was changed.")
            return
    try:
        backup = reset(progress_file())
    except (OSError, RuntimeError) as problem:
        raise CourseError(f"the records cannot be moved aside ({problem}); nothing was changed") from problem
    print("There were no records." if backup is None else f"You begin anew. Your records so far: {backup}")
