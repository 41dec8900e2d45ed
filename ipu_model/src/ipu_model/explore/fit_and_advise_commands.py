"""`python -m ipu_model advise` and `fit`: what would make a program fit or faster."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ipu_model.command_options import (
    SOURCE_HELP,
    add_modelling,
    add_page,
    description_of,
    finish_page,
    host_of,
)

if TYPE_CHECKING:
    from ipu_model.explore.advise import AdviceList
    from ipu_model.predict.profile import Profile

_ADVISE_EXAMPLE = "example: python -m ipu_model advise program.py:training --loader program.py:loader"
_FIT_EXAMPLE = "example: python -m ipu_model fit program.py:training --ipus 4 --html fit.html"
_WIDTH = 100
# What `ipu_model.explore.fit.KEEP` explains; imported there, it would load the model for --help.
_KEEP = ("precision", "optimiser", "micro-batch", "replicas", "split", "machine")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of both commands."""
    fit = subparsers.add_parser(
        "fit", help="search for what makes a program fit, and print its lines of code", epilog=_FIT_EXAMPLE,
        description=description_of("Searches for the fastest and the cheapest settings with which a program fits."),
    )  # fmt: skip
    fit.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    fit.add_argument("--ipus", type=int, metavar="N", help="use at most so many IPUs")
    fit.add_argument(
        "--keep", choices=_KEEP, action="append", default=[], metavar="WHAT",
        help=f"leave this as it is: {', '.join(_KEEP)}; may be given several times",
    )  # fmt: skip
    add_page(fit)
    add_modelling(fit)
    fit.set_defaults(run=run_fit)
    advice = subparsers.add_parser(
        "advise", help="print single changes that make a program fit or faster", epilog=_ADVISE_EXAMPLE,
        description=description_of("Ranks single changes of a program; each is modelled."),
    )  # fmt: skip
    advice.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    add_page(advice)
    add_modelling(advice)
    advice.set_defaults(run=run_advise)


def run_fit(arguments: argparse.Namespace) -> None:
    """Print what makes one program fit, and write its page if one is asked for."""
    from ipu_model.explore.fit import make_it_fit
    from ipu_model.report.fit_page import fit_html
    from ipu_model.sources import given_by, refusals_named

    host, given = host_of(arguments), given_by(arguments.source)
    with refusals_named(arguments.source):
        result = make_it_fit(
            given.thing, **given.arguments,
            host=host, machine=arguments.machine, ipus=arguments.ipus, keep=arguments.keep,
            progress=sys.stderr.isatty(),
        ).for_shell()  # fmt: skip
    print(result.text())
    finish_page(arguments, None, lambda: fit_html(result))


def run_advise(arguments: argparse.Namespace) -> None:
    """Print the advice for one program, and write its page if one is asked for."""
    from ipu_model.explore.advise import advise
    from ipu_model.explore.profiling import profile
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by, refusals_named

    host, given = host_of(arguments), given_by(arguments.source)
    with refusals_named(arguments.source):
        now = profile(given.program() if given.arguments else given.thing, host=host, machine=arguments.machine)
        if arguments.machine is None:
            advice = advise(given.thing, **given.arguments, profile=now)
        else:  # a module would be captured for its own machine
            advice = advise(now, profile=now)
    print("\n".join(_advice(now, advice)))
    finish_page(arguments, None, lambda: html_report(now, advice))


def _advice(profile: Profile, advice: AdviceList) -> Iterator[str]:
    from ipu_model.report.findings import heading, verdict

    yield f"{heading(profile)}: {verdict(profile)}."
    yield f"{profile.samples_per_second:,.4g} samples/s end to end, limited by: {profile.limited_by}. All modelled."
    if not advice:
        yield ""
        yield "No single change that was tried makes it better. python -m ipu_model fit tries combinations."
    for number, item in enumerate(advice, 1):
        yield ""
        yield f"{number}. {item.change}: {item.effect}"
        texts = [item.evidence, item.explanation, *([f"Cost: {item.cost}."] if item.cost else [])]
        for text in texts:
            yield from textwrap.wrap(text, _WIDTH, initial_indent="   ", subsequent_indent="   ")
        yield from (f"       {line}" for line in item.how.splitlines())
    if advice.note:
        yield ""
        yield from textwrap.wrap(advice.note, _WIDTH)
