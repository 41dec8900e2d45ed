"""`python -m ipu_model report` and `compare`: profiles in files, for the terminal or as a page."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Callable
from pathlib import Path

from ipu_model.errors import Error
from ipu_model.report.text_files import write_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of both commands."""
    report = subparsers.add_parser(
        "report", help="print what was modelled for one program", description="Prints the report of a profile."
    )
    report.add_argument("profile", type=Path, metavar="DIR_OR_FILE", help="profile.json, or the folder that holds it")
    _add_page(report)
    report.set_defaults(run=run_report)
    comparison = subparsers.add_parser(
        "compare", help="print what differs between two profiles", description="Compares two profiles."
    )
    comparison.add_argument("before", type=Path, metavar="BEFORE", help="profile.json, or the folder that holds it")
    comparison.add_argument("after", type=Path, metavar="AFTER", help="the profile to compare with it")
    _add_page(comparison)
    comparison.set_defaults(run=run_compare)


def run_report(arguments: argparse.Namespace) -> None:
    """Print the report of one profile, and write or name its page."""
    from ipu_model.report import profile_json
    from ipu_model.report.files import HTML_NAME
    from ipu_model.report.page import html_report
    from ipu_model.report.text import text_report

    profile = profile_json.read(arguments.profile)
    print(text_report(profile))
    folder = profile_json.file_of(arguments.profile).parent
    _finish(arguments, folder / HTML_NAME, lambda: html_report(profile))


def run_compare(arguments: argparse.Namespace) -> None:
    """Print the comparison of two profiles, and write its page if one is asked for."""
    from ipu_model.report import profile_json
    from ipu_model.report.compare import compare, compare_html

    before, after = profile_json.read(arguments.before), profile_json.read(arguments.after)
    print(compare(before, after))
    _finish(arguments, None, lambda: compare_html(before, after))


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
    parser.add_argument("--open", choices=("yes", "no"), default="no", help="show the page in a browser (default: no)")


def _finish(arguments: argparse.Namespace, known: Path | None, make_page: Callable[[], str]) -> None:
    """Write the page if one is asked for, say where it is, and open it if that is asked for."""
    page: Path | None = arguments.html
    if page is not None:
        write_text(page, make_page())
    elif known is not None and known.exists():
        page = known
    if page is not None:
        print(f"page: {page}")
    elif known is not None:
        print(f"page: none at {known}; --html OUT writes one")
    if arguments.open == "yes":
        if page is None:
            raise Error("There is no page to open: --html OUT writes one.")
        webbrowser.open(page.resolve().as_uri())
