"""The sub-command ``leaderboard``: one page of the results that the learners of a room have exported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_course.errors import CourseError

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

DESCRIPTION = """Merge the files that learners have written with 'python -m ipu_course report --export FILE' into one
page with the best scores and the best predictions. Nothing is sent anywhere."""
DEFAULT_OUTPUT = "leaderboard.html"


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "leaderboard", help="make one page of the results that learners have exported", description=DESCRIPTION
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a result that a learner has exported")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(DEFAULT_OUTPUT),
        metavar="PAGE",
        help="where to write the page (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> None:
    """Write the page; files that are no results are named and left out. Raises ``CourseError`` where none is left."""
    from ipu_course.programs.report.leaderboard import GENERATOR, leaderboard_page
    from ipu_course.programs.report.output import write_output
    from ipu_course.programs.report.result_file import read_result
    from ipu_course.programs.report.template import is_page_of
    from ipu_course.programs.text import counted

    results = []
    for path in parsed.files:
        try:
            results.append(read_result(path))
        except CourseError as problem:
            print(f"Left out: {problem}.", file=sys.stderr)
    if not results:
        raise CourseError("none of the files is a result; learners write theirs with 'report --export FILE'")
    page = leaderboard_page(results)
    write_output(parsed.output, page, "leaderboard", "--output", lambda start: is_page_of(GENERATOR, start))
    print(f"The leaderboard of {counted(len(results), 'learner')} is {parsed.output}.")
