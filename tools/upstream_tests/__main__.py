"""`python -m upstream_tests CHECKOUT/tests`: the command line. Exit code 0 if everything is as listed, else 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from upstream_tests.expected import compare, read, renewed, write
from upstream_tests.outcomes import Outcome
from upstream_tests.report import progress, sections, summary
from upstream_tests.run import Settings, files_below, run


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and compare with the list of expected failures, or write the list if there is none."""
    options = _parser().parse_args(arguments)
    tests = options.tests.resolve()
    files = [file for file in files_below(tests) if options.files in file.name]
    if not files:
        print(f"No test files with {options.files!r} in their names below {tests}.", file=sys.stderr)
        return 2
    extra = (*(("-k", options.select) if options.select else ()), *options.pytest)
    settings = Settings(tests, options.patience, options.workers, extra)
    outcomes: list[Outcome] = []
    for file, found in zip(files, run(settings, files), strict=True):
        print(progress(found, file.relative_to(tests).as_posix()), flush=True)
        outcomes += found
    print(f"\n{summary(outcomes)}")
    return _judge(outcomes, options.expected, renew=options.update)


def _judge(outcomes: list[Outcome], expected: Path, *, renew: bool) -> int:
    known = read(expected) if expected.exists() else {}
    if renew or not expected.exists():
        entries = renewed(outcomes, known)
        write(expected, entries)
        blank = sum(not entry.reason for entry in entries)
        print(f"{expected} lists {len(entries)} expected failures; {blank} of them need a reason.")
        return 0
    comparison = compare(outcomes, known)
    print(f"\n{sections(comparison)}" if sections(comparison) else f"\nEverything is as {expected} says.")
    return 0 if comparison.as_expected else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m upstream_tests", description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder `tests` of a checkout of PopTorch; it is only read")
    parser.add_argument(
        "--expected", type=Path, default=Path(__file__).with_name("failures.csv"), metavar="FILE",
        help="the list of expected failures (failures.csv beside this file); a run without one writes it",
    )  # fmt: skip
    parser.add_argument("--update", action="store_true", help="write the list anew and keep the reasons in it")
    parser.add_argument("--files", default="", metavar="TEXT", help="only files with this text in their names")
    parser.add_argument("--select", default="", metavar="EXPRESSION", help="only these tests, as for pytest -k")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="so many files at a time (%(default)s)")
    parser.add_argument(
        "--patience", type=float, default=600.0, metavar="SECONDS", help="for one test (%(default)g)"
    )  # fmt: skip
    parser.add_argument(
        "pytest", nargs="*", help="after --: further arguments for pytest, and so for their conftest.py"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
