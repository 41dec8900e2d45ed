"""`python -m ipu_model advise` and `fit`: what would make a program fit or faster."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ipu_model.commands.command_options import (
    SOURCE_HELP,
    add_modelling,
    add_page,
    check_page,
    description_of,
    finish_page,
    host_of,
)
from ipu_model.commands.option_values import one_of, whole_number
from ipu_model.errors import Error
from ipu_model.explore import KEEP

if TYPE_CHECKING:
    from ipu_model.explore.advise import AdviceList
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import Profile
    from ipu_model.predict.program import Program

NOTHING_FITS = 1
"""The exit code of a search that finds nothing that fits."""
_ADVISE_EXAMPLE = "example: python -m ipu_model advise program.py:training --loader program.py:loader"
_FIT_EXAMPLE = "example: python -m ipu_model fit program.py:training --ipus 4 --html fit.html"
_WIDTH = 100


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of both commands."""
    fit = subparsers.add_parser(
        "fit", help="search for settings with which a program fits, and print the code for them", epilog=_FIT_EXAMPLE,
        description=description_of("Searches for the fastest and the cheapest settings with which a program fits."),
    )  # fmt: skip
    fit.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    fit.add_argument("--ipus", type=whole_number(1), metavar="N", help="use at most this many IPUs")
    fit.add_argument(
        "--keep", type=one_of(KEEP), action="append", default=[], metavar="WHAT",
        help=f"leave this as it is: {'; '.join(f'{name} ({what})' for name, what in KEEP.items())}; "
        "may be given several times",
    )  # fmt: skip
    add_page(fit)
    add_modelling(fit)
    fit.set_defaults(run=run_fit)
    advice = subparsers.add_parser(
        "advise", help="print single changes that make a program fit or faster", epilog=_ADVISE_EXAMPLE,
        description=description_of("Models single changes of a program and ranks them."),
    )  # fmt: skip
    advice.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    add_page(advice)
    add_modelling(advice)
    advice.set_defaults(run=run_advise)


def run_fit(arguments: argparse.Namespace) -> int:
    """Print what makes one program fit, write its page if one is asked for, and return the exit code."""
    check_page(arguments)
    from ipu_model.explore.fit import make_it_fit
    from ipu_model.explore.what_if import host_work_of
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by

    given = given_by(arguments.source)
    source, host = given.source(), host_work_of(given.thing, host_of(arguments))
    result = make_it_fit(
        source, host=host, machine=arguments.machine, ipus=arguments.ipus, keep=arguments.keep,
        progress=sys.stderr.isatty(),
    ).for_shell()  # fmt: skip
    print(result.text())
    finish_page(arguments, None, lambda: html_report(_as_it_is(source.program, host, arguments.machine), fit=result))
    return 0 if result.found else NOTHING_FITS


def _as_it_is(program: Program, host: HostWork, machine: str | None) -> Profile:
    """Return the profile of a program on the machine that was asked for, or on its own if the other is too small."""
    from ipu_model.explore.what_if import profile

    try:
        return profile(program, host=host, machine=machine)
    except Error:
        return profile(program, host=host)


def run_advise(arguments: argparse.Namespace) -> None:
    """Print the advice for one program, and write its page if one is asked for."""
    check_page(arguments)
    from ipu_model.commands.slow_work import said_if_slow
    from ipu_model.explore.advise import advise
    from ipu_model.explore.what_if import host_work_of, profile
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by

    given = given_by(arguments.source)
    source, host = given.source(), host_work_of(given.thing, host_of(arguments))
    with said_if_slow(f"modelling changes of {given.name}"):
        now = profile(source.program, host=host, machine=arguments.machine)
        assert now.program is not None
        advice = advise(replace(source, program=now.program), host=host, profile=now)
    print("\n".join(_advice(now, advice, given.name)))
    finish_page(arguments, None, lambda: html_report(now, advice))


def _advice(profile: Profile, advice: AdviceList, name: str) -> Iterator[str]:
    from ipu_model.report.findings import heading, verdict

    yield f"{heading(profile)}: {verdict(profile)}."
    yield f"{profile.samples_per_second:,.4g} samples/s end to end, limited by: {profile.limited_by}. All modelled."
    for number, item in enumerate(advice, 1):
        yield ""
        yield f"{number}. {item.change}: {item.effect}"
        texts = [item.evidence, item.explanation, *([f"Cost: {item.cost}."] if item.cost else [])]
        for text in texts:
            yield from textwrap.wrap(text, _WIDTH, initial_indent="   ", subsequent_indent="   ")
        yield from (f"       {line}" for line in item.how.splitlines())
    if advice.note or not advice:
        missing = "makes this program fit for certain" if advice.note else "that was tried makes it better"
        yield ""
        yield f"No single change {missing}. To combine changes, run: python -m ipu_model fit {shlex.quote(name)}"
