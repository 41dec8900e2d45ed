"""`python -m ipu_model report` and `compare`: profiles for the terminal or as a page."""

from __future__ import annotations

import argparse

from ipu_model.commands.command_options import (
    SOURCE_HELP,
    add_modelling,
    add_page,
    check_page,
    description_of,
    finish_page,
    host_of,
)

_REPORT_EXAMPLE = "example: python -m ipu_model report ./report --html report.html"
_COMPARE_EXAMPLE = "example: python -m ipu_model compare ./before program.py:training --html compared.html"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of both commands."""
    report = subparsers.add_parser(
        "report", help="print what was modelled for one program", epilog=_REPORT_EXAMPLE,
        description=description_of("Prints the report of a program."),
    )  # fmt: skip
    report.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    comparison = subparsers.add_parser(
        "compare", help="print what differs between two programs", epilog=_COMPARE_EXAMPLE,
        description=description_of("Compares two programs, each of which is a SOURCE."),
    )  # fmt: skip
    comparison.add_argument("before", metavar="BEFORE", help=SOURCE_HELP)
    comparison.add_argument("after", metavar="AFTER", help="the program to compare with it")
    for parser, run in ((report, run_report), (comparison, run_compare)):
        add_page(parser)
        add_modelling(parser)
        parser.set_defaults(run=run)


def run_report(arguments: argparse.Namespace) -> None:
    """Print the report of one program, and write or name its page."""
    from ipu_model.report.files import HTML_NAME
    from ipu_model.report.page import html_report
    from ipu_model.report.text import text_report
    from ipu_model.sources import folder_of_source, profile_of_source

    machine, is_again = arguments.machine, _is_modelled_again(arguments)
    folder = folder_of_source(arguments.source)
    # The page in the folder shows the program as it was modelled then.
    known = folder / HTML_NAME if folder is not None and not is_again else None
    check_page(arguments, known)
    profile = profile_of_source(arguments.source, host=host_of(arguments), machine=machine)
    print(text_report(profile))
    finish_page(arguments, known, lambda: html_report(profile))


def _is_modelled_again(arguments: argparse.Namespace) -> bool:
    return any(value is not None for value in (arguments.machine, arguments.loader, arguments.seconds_per_sample))


def run_compare(arguments: argparse.Namespace) -> None:
    """Print the comparison of two programs, and write its page if one is asked for."""
    check_page(arguments)
    from ipu_model.report.compare import compare, compare_html
    from ipu_model.sources import profile_of_source

    host = host_of(arguments)
    before, after = (
        profile_of_source(source, host=host, machine=arguments.machine)
        for source in (arguments.before, arguments.after)
    )
    print(compare(before, after))
    finish_page(arguments, None, lambda: compare_html(before, after))
