"""`python -m ipu_model advise`: what would make a program fit or faster."""

from __future__ import annotations

import argparse
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
_WIDTH = 100


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command."""
    advice = subparsers.add_parser(
        "advise", help="print single changes that make a program fit or faster", epilog=_ADVISE_EXAMPLE,
        description=description_of("Ranks single changes of a program; each is modelled."),
    )  # fmt: skip
    advice.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    add_page(advice)
    add_modelling(advice)
    advice.set_defaults(run=run_advise)


def run_advise(arguments: argparse.Namespace) -> None:
    """Print the advice for one program, and write its page if one is asked for."""
    from ipu_model.explore.advise import advise
    from ipu_model.explore.profile import profile
    from ipu_model.report.page import html_report
    from ipu_model.sources import program_of_source

    host = host_of(arguments)
    now = profile(program_of_source(arguments.source), host=host, machine=arguments.machine)
    advice = advise(now, host=host, profile=now)
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
