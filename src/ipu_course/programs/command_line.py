"""The command line of the course's programs: one sub-command each."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Sequence

from ipu_course import __version__
from ipu_course.errors import CourseError
from ipu_course.programs.bench import command as bench_command
from ipu_course.programs.doctor import command as doctor_command
from ipu_course.programs.lab import command as lab_command
from ipu_course.programs.mnist import command as mnist_command
from ipu_course.programs.report import command as report_command
from ipu_course.programs.report import leaderboard_command
from ipu_course.programs.train import command as train_command

# Each module offers register(subparsers): it adds its parser and sets the default `run`, a function of the
# parsed arguments that may give an exit code. What `run` needs is imported inside it, so that --help does not
# wait for torch.
COMMANDS = (
    lab_command,
    doctor_command,
    mnist_command,
    train_command,
    bench_command,
    report_command,
    leaderboard_command,
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m ipu_course`` with all its sub-commands."""
    parser = argparse.ArgumentParser(
        prog="python -m ipu_course",
        description="Programs of the course on IPUs with PopTorch.",
        epilog="'python -m ipu_course PROGRAM --help' prints the options of a program.",
    )
    parser.add_argument("--version", action="version", version=f"ipu-course {__version__}")
    subparsers = parser.add_subparsers(title="programs", dest="program", metavar="PROGRAM", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that ``arguments`` (default: the command line) name and give its exit code."""
    parsed = make_parser().parse_args(arguments)
    try:
        code: int | None = parsed.run(parsed)
    except CourseError as problem:
        print(f"python -m ipu_course {parsed.program}: error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"python -m ipu_course {parsed.program}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python would complain once more when it empties it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0
