"""`python -m ipu_model report`, `compare`, `fit` and `advise`: the commands about programs."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ipu_model.commands import options
from ipu_model.errors import Error
from ipu_model.explore import KEEP
from ipu_model.sources import RETURNS

if TYPE_CHECKING:
    from ipu_model.explore.advise import AdviceList
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import Profile
    from ipu_model.predict.program import Program

NOTHING_FITS = 1
"""The exit code of a search that finds nothing that fits."""
_SOURCES = (
    "SOURCE is the folder of a report, its profile.json or program.ipu, or a function that returns a program, as "
    "program.py:function. "
)
_SOURCE = "a report's folder, profile.json, program.ipu, or program.py:function"
_WIDTH = 100


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def command(name: str, about: str, description: str, example: str) -> argparse.ArgumentParser:
        return subparsers.add_parser(
            name,
            help=about,
            description=f"{description} {_SOURCES}{RETURNS}",
            epilog=f"example: python -m ipu_model {name} {example}",
        )

    report = command(
        "report", "print what was modelled for one program", "Prints the report of a program.",
        "./report --html report.html",
    )  # fmt: skip
    compare = command(
        "compare", "print what differs between two programs", "Compares two programs, each of which is a SOURCE.",
        "./before program.py:training --html compared.html",
    )  # fmt: skip
    fit = command(
        "fit", "search for settings with which a program fits, and print the code for them",
        "Searches for the fastest and the cheapest settings with which a program fits.",
        "program.py:training --ipus 4 --html fit.html",
    )  # fmt: skip
    advise = command(
        "advise", "print single changes that make a program fit or faster",
        "Models single changes of a program and ranks them.", "program.py:training --loader program.py:loader",
    )  # fmt: skip
    compare.add_argument("before", metavar="BEFORE", help=_SOURCE)
    compare.add_argument("after", metavar="AFTER", help="the program to compare with it")
    for parser in (report, fit, advise):
        parser.add_argument("source", metavar="SOURCE", help=_SOURCE)
    fit.add_argument("--ipus", type=options.whole_number(1), metavar="N", help="use at most this many IPUs")
    stays = "; ".join(f"{name} ({what})" for name, what in KEEP.items())
    fit.add_argument(
        "--keep", type=options.one_of(KEEP), action="append", default=[], metavar="WHAT",
        help=f"leave this as it is: {stays}; may be given several times",
    )  # fmt: skip
    for parser, run in ((report, run_report), (compare, run_compare), (fit, run_fit), (advise, run_advise)):
        options.add_page(parser)
        options.add_modelling(parser)
        parser.set_defaults(run=run)


def run_report(arguments: argparse.Namespace) -> None:
    from ipu_model.report.files import HTML_NAME
    from ipu_model.report.page import html_report
    from ipu_model.report.text import text_report
    from ipu_model.sources import folder_of_source, profile_of_source

    folder = folder_of_source(arguments.source)
    # The page in the folder shows the program as it was modelled then.
    known = folder / HTML_NAME if folder is not None and not options.is_modelled_again(arguments) else None
    options.check_page(arguments, known)
    profile = profile_of_source(arguments.source, host=options.host_of(arguments), machine=arguments.machine)
    print(text_report(profile))
    options.finish_page(arguments, known, lambda: html_report(profile))


def run_compare(arguments: argparse.Namespace) -> None:
    options.check_page(arguments)
    from ipu_model.report.compare import compare, compare_html
    from ipu_model.sources import profile_of_source

    host = options.host_of(arguments)
    before, after = (
        profile_of_source(source, host=host, machine=arguments.machine)
        for source in (arguments.before, arguments.after)
    )
    print(compare(before, after))
    options.finish_page(arguments, None, lambda: compare_html(before, after))


def run_fit(arguments: argparse.Namespace) -> int:
    options.check_page(arguments)
    from ipu_model.explore.fit import make_it_fit
    from ipu_model.explore.what_if import host_work_of
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by

    given = given_by(arguments.source)
    source, host = given.source(), host_work_of(given.thing, options.host_of(arguments))
    result = make_it_fit(
        source, host=host, machine=arguments.machine, ipus=arguments.ipus, keep=arguments.keep,
        progress=sys.stderr.isatty(),
    ).for_shell()  # fmt: skip
    print(result)
    options.finish_page(
        arguments, None, lambda: html_report(_as_it_is(source.program, host, arguments.machine), fit=result)
    )
    return 0 if result.found else NOTHING_FITS


def _as_it_is(program: Program, host: HostWork, machine: str | None) -> Profile:
    """Return the profile of a program on the machine that was asked for, or on its own if the other is too small."""
    from ipu_model.explore.what_if import profile

    try:
        return profile(program, host=host, machine=machine)
    except Error:
        return profile(program, host=host)


def run_advise(arguments: argparse.Namespace) -> None:
    options.check_page(arguments)
    from ipu_model.explore.advise import advise
    from ipu_model.explore.what_if import host_work_of, profile
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by, said_if_slow

    given = given_by(arguments.source)
    source, host = given.source(), host_work_of(given.thing, options.host_of(arguments))
    with said_if_slow(f"modelling changes of {given.name}"):
        now = profile(source.program, host=host, machine=arguments.machine)
        assert now.program is not None
        advice = advise(replace(source, program=now.program), host=host, profile=now)
    print("\n".join(_advice(now, advice, given.name)))
    options.finish_page(arguments, None, lambda: html_report(now, advice))


def _advice(profile: Profile, advice: AdviceList, name: str) -> Iterator[str]:
    from ipu_model.report.findings import heading, verdict

    yield f"{heading(profile)}: {verdict(profile)}."
    yield f"{profile.samples_per_second:,.4g} samples/s end to end, limited by: {profile.limited_by}. All modelled."
    for number, item in enumerate(advice, 1):
        yield f"\n{number}. {item.change}: {item.effect}"
        for text in (item.evidence, item.explanation, f"Cost: {item.cost}." if item.cost else ""):
            yield from textwrap.wrap(text, _WIDTH, initial_indent="   ", subsequent_indent="   ")
        yield from (f"       {line}" for line in item.how.splitlines())
    if advice.note or not advice:
        missing = "makes this program fit for certain" if advice.note else "that was tried makes it better"
        yield f"\nNo single change {missing}. To combine changes, run: python -m ipu_model fit {shlex.quote(name)}"
