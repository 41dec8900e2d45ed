"""The sub-command ``doctor``: looks over this machine before a lesson or a workshop."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipu_course.errors import CourseError
from ipu_course.programs.options import positive_number

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

DESCRIPTION = """Check whether the lessons will run on this machine: Python, packages, poptorch, cores, memory, kernel,
JupyterLab, data and worker processes. Every finding says what is wrong, why it matters and what helps. The doctor does
not use the network. The exit code is 1 if there is at least one problem, otherwise 0."""
FIRST_LESSON, SECONDS = "00", 300.0


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "doctor", help="check whether the lessons will run on this machine", description=DESCRIPTION
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--preflight",
        nargs="?",
        const=FIRST_LESSON,
        metavar="LESSON",
        help=f"also execute a lesson in a fresh kernel (default: {FIRST_LESSON})",
    )
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=SECONDS,
        metavar="S",
        help="time limit for that lesson (default: %(default).0f)",
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Run the doctor with parsed arguments and return its exit code."""
    try:
        from ipu_course.programs.doctor.examination import examine
    except ImportError as error:
        from ipu_course.programs.doctor.finding import INSTALL

        raise CourseError(
            f"the package {error.name!r}, which the doctor itself needs, is missing. {INSTALL}"
        ) from error
    from ipu_course.programs.doctor.finding import CheckResult, as_json, exit_code, full_text

    results = examine()
    if parsed.preflight is not None:
        from ipu_course.programs.doctor.preflight import run_lesson

        results.append(CheckResult("lesson in a kernel", run_lesson(parsed.preflight, parsed.seconds)))
    print(as_json(results) if parsed.json else full_text(results))
    return exit_code(results)
