"""The sub-command ``report``: the learner's page, the records, a result for the leaderboard, or a new beginning."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_course.errors import CourseError

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

DESCRIPTION = """Write a page that shows your predictions, exercises, scores, quiz and ladder so far. The page is made
from a file on this machine; nothing is sent anywhere."""
DEFAULT_OUTPUT = "ipu_course_report.html"


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "report", help="write a page of your predictions, exercises and ladder so far", description=DESCRIPTION
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"where to write the page (default: {DEFAULT_OUTPUT})"
    )
    parser.add_argument("--open", action="store_true", help="show the page in your browser")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print your records as JSON, and write no page")
    kind.add_argument(
        "--reset", action="store_true", help="start again with empty records; the old ones are kept as a backup"
    )
    kind.add_argument("--export", type=Path, metavar="FILE", help="write your result to a file for the leaderboard")
    parser.add_argument("--name", metavar="NAME", help="with --export: your name on the leaderboard (default: no name)")
    parser.add_argument("--yes", action="store_true", help="with --reset: do not ask for confirmation")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> None:
    """Do what the parsed arguments say. Raises ``CourseError`` when it cannot be done."""
    _refuse_what_means_nothing(parsed)
    if parsed.reset:
        _reset(parsed.yes)
    elif parsed.json:
        from ipu_course.progress import read_progress
        from ipu_course.progress.store import to_text

        progress = read_progress()
        if progress.problem is not None:
            print(progress.problem, file=sys.stderr)
        print(to_text(progress), end="")
    elif parsed.export is not None:
        _export(parsed.export, parsed.name or "")
    else:
        _write_page(parsed.output or Path(DEFAULT_OUTPUT), parsed.open)


def _refuse_what_means_nothing(parsed: argparse.Namespace) -> None:
    if parsed.yes and not parsed.reset:
        raise CourseError("--yes confirms --reset, so it needs --reset, too")
    if parsed.name is not None and parsed.export is None:
        raise CourseError("--name is your name in the file of --export, so it needs --export, too")
    if (parsed.json or parsed.reset or parsed.export is not None) and (parsed.output is not None or parsed.open):
        raise CourseError("--json, --export and --reset write no page, so --output and --open do not go with them")


def _write_page(output: Path, show: bool) -> None:
    from datetime import date

    from ipu_course.programs.report.output import write_output
    from ipu_course.programs.report.page import EMPTY, GENERATOR, report_page
    from ipu_course.programs.report.template import is_page_of
    from ipu_course.progress import read_progress

    progress = read_progress()
    page = report_page(progress, date.today())
    write_output(output, page, "report", "--output", lambda start: is_page_of(GENERATOR, start))
    if progress.problem is not None:
        print(progress.problem)
    if progress.empty:
        print(EMPTY)
    print(f"Your report is {output}.")
    if show:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            print("No browser was found. Open the file yourself.")


def _export(path: Path, name: str) -> None:
    from ipu_course.programs.report.output import write_output
    from ipu_course.programs.report.result_file import FORMAT, result_of, to_text
    from ipu_course.progress import read_progress

    result = result_of(read_progress(), name)
    write_output(path, to_text(result), "result", "--export", lambda start: FORMAT in start)
    print(f"Your result for the leaderboard is {path}. It holds {'your name, ' if result.name else ''}your scores, how")
    print("far off your guesses were, and how many exercises you have solved; it holds nothing else.")


def _reset(sure: bool) -> None:
    from ipu_course.progress.store import progress_file, reset

    if not sure:
        if not sys.stdin.isatty():
            raise CourseError(
                "--reset asks for confirmation, and there is no terminal here; --reset --yes does not ask"
            )
        answer = input("Start with empty records? The old ones are kept as a backup. [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("Nothing was changed.")
            return
    try:
        backup = reset(progress_file())
    except (OSError, RuntimeError) as problem:
        raise CourseError(f"the records cannot be moved aside ({problem}); nothing was changed") from problem
    print("There were no records." if backup is None else f"Your records are empty now. The old ones are in {backup}.")
