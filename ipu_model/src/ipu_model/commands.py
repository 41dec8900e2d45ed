"""Every command of `python -m ipu_model`, each of which imports what it needs once it runs."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import textwrap
import webbrowser
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model import __version__
from ipu_model.errors import Error, did_you_mean
from ipu_model.explore import KEEP
from ipu_model.report.quantities import aligned, plain
from ipu_model.sources import RETURNS
from ipu_model.whole_files import check_writable, write_text

if TYPE_CHECKING:
    from ipu_model.predict.calibration import Fact
    from ipu_model.predict.host import HostWork

NOTHING_FITS = 1
"""The exit code of a search that finds nothing that fits."""
_WIDTH = 110
_VALIDATION = Path(__file__).resolve().parents[2] / "validation"
"""Where a checkout of the sources has the package `published`, which no wheel contains."""
_SOURCES = (
    "SOURCE is the folder of a report, its profile.json or program.ipu, or a function that returns a program, as "
    "program.py:function. "
)
_SOURCE = "a report's folder, profile.json, program.ipu, or program.py:function"


def make_parser() -> ArgumentParser:
    """Return the parser; commands set `run`, which returns the exit code and imports what it needs."""
    parser = ArgumentParser(
        prog="python -m ipu_model",
        description="The IPU Model predicts what programs would do on IPUs. All numbers are modelled.",
        epilog="example: python -m ipu_model fit --help explains what a program is and lists the options",
    )
    parser.add_argument("--version", action="version", version=f"ipu-model {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    _register(subparsers)
    machines = subparsers.add_parser(
        "machines",
        help="print the machines that can be modelled",
        description="Prints the machines that can be modelled, and where each of their numbers comes from.",
        epilog="example: python -m ipu_model machines Bow-POD16",
    )
    machines.add_argument("names", nargs="*", metavar="MACHINE", help="print only these machines (default: all)")
    machines.set_defaults(run=print_machines)
    validate = subparsers.add_parser(
        "validate",
        help="compare the model with published measurements",
        description="Prints every published row beside its modelled value, with the signed error.",
        epilog="example: python -m ipu_model validate day03",
    )
    validate.add_argument(
        "rows", nargs="*", metavar="ROW", help="print only rows whose id begins with this (day03, mlperf, ...)"
    )
    validate.add_argument(
        "--leave-one-out", action="store_true", help="refit the constants with one fitted row left out at a time"
    )
    validate.add_argument("--long", action="store_true", help="rebuild programs that take minutes too")
    validate.add_argument("--constants", action="store_true", help="list the calibrated constants with their sources")
    validate.add_argument(
        "--record", action="store_true", help="write the errors as the record that tests compare with"
    )
    validate.set_defaults(run=run_validate)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the command line) name and return its exit code.

    Codes: 0 done, 1 nothing that fits was found or nobody reads the output any more, 2 an error in one line, 130
    stopped with Ctrl-C.
    """
    parsed = make_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed) or 0
        sys.stdout.flush()
    except Error as problem:
        print(f"python -m ipu_model {parsed.command}: error: {problem.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"python -m ipu_model {parsed.command}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python would complain once more when it empties it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _register(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    def command(name: str, about: str, description: str, example: str) -> ArgumentParser:
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
    fit.add_argument("--ipus", type=whole_number(1), metavar="N", help="use at most this many IPUs")
    stays = "; ".join(f"{name} ({what})" for name, what in KEEP.items())
    fit.add_argument(
        "--keep", type=one_of(KEEP), action="append", default=[], metavar="WHAT",
        help=f"leave this as it is: {stays}; may be given several times",
    )  # fmt: skip
    for parser in (fit, advise):
        parser.add_argument(
            "--margin", type=share, default=0.05, metavar="SHARE",
            help="the share of the fullest tile that stays free (default: %(default)s)",
        )  # fmt: skip
    for parser, run in ((report, run_report), (compare, run_compare), (fit, run_fit), (advise, run_advise)):
        parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
        parser.add_argument("--open", action="store_true", help="show the page in your browser")
        add_modelling(parser)
        parser.set_defaults(run=run)


# --- the commands, which import what they need once they run


def run_report(arguments: Namespace) -> None:
    from ipu_model.report.files import HTML_NAME
    from ipu_model.report.page import html_report
    from ipu_model.report.text import text_report
    from ipu_model.sources import folder_of_source, profile_of_source

    folder = folder_of_source(arguments.source)
    # The page in the folder shows the program as it was modelled then: on its machine, with its host's work.
    is_another = any(value is not None for value in (arguments.machine, arguments.loader, arguments.seconds_per_sample))
    known = folder / HTML_NAME if folder is not None and not is_another else None
    check_page(arguments, known)
    profile = profile_of_source(arguments.source, host=host_of(arguments), machine=arguments.machine)
    print(text_report(profile))
    finish_page(arguments, known, lambda: html_report(profile))


def run_compare(arguments: Namespace) -> None:
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


def run_fit(arguments: Namespace) -> int:
    check_page(arguments)
    from ipu_model.sources import given_by, said_if_slow

    with said_if_slow("loading the model"):
        from ipu_model.explore.fit import make_it_fit
        from ipu_model.explore.what_if import profile
        from ipu_model.report.page import html_report

    source = given_by(arguments.source)
    host = host_of(arguments) or source.host
    result = make_it_fit(
        source, host=host, machine=arguments.machine, ipus=arguments.ipus, keep=arguments.keep,
        margin=arguments.margin, progress=sys.stderr.isatty(),
    ).for_shell()  # fmt: skip
    print(result)
    # As it is, the program may be too large for the machine that was asked for.
    machine = None if result.start.refused else arguments.machine
    finish_page(arguments, None, lambda: html_report(profile(source.program, host=host, machine=machine), fit=result))
    return 0 if result.found else NOTHING_FITS


def run_advise(arguments: Namespace) -> None:
    check_page(arguments)
    from ipu_model.explore.advise import advise
    from ipu_model.explore.what_if import profile
    from ipu_model.report.findings import heading, verdict
    from ipu_model.report.page import html_report
    from ipu_model.sources import given_by, said_if_slow

    source = given_by(arguments.source)
    host = host_of(arguments) or source.host
    with said_if_slow(f"modelling changes of {arguments.source}"):
        now = profile(source.program, host=host, machine=arguments.machine)
        assert now.program is not None
        advice = advise(replace(source, program=now.program), host=host, profile=now, margin=arguments.margin)
    advice = replace(advice, search=f"python -m ipu_model fit {shlex.quote(arguments.source)}")
    print(f"{heading(now)}: {verdict(now)}.")
    print(f"{now.samples_per_second:,.4g} samples/s end to end, limited by: {now.limited_by}. All modelled.\n")
    print(advice)
    finish_page(arguments, None, lambda: html_report(now, advice))


# --- their options: the machine, the host's work, the page


def _number(read: Callable[[str], Any], least: int, below: float, what: str) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        with suppress(ValueError):
            if least <= read(text) < below:
                return read(text)
        raise ArgumentTypeError(f"it takes {what}, not {text!r}")

    return checked


def whole_number(least: int) -> Callable[[str], int]:
    return _number(int, least, math.inf, f"a whole number from {least} on, such as 4")


seconds = _number(float, 0, math.inf, "a number of seconds from 0 on, such as 0.001 for a millisecond")
share = _number(float, 0, 1, "a share from 0 to below 1, such as 0.05")


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    known = list(names)

    def read(text: str) -> str:
        if text in known:
            return text
        raise ArgumentTypeError(f"it takes one of {', '.join(known)}, not {text!r}.{did_you_mean(text, known)}")

    return read


def add_modelling(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("model the program again, on another machine or with its own loader")
    group.add_argument(
        "--machine", metavar="NAME", help="for example POD16 or Bow; python -m ipu_model machines lists all machines"
    )
    loading = group.add_mutually_exclusive_group()
    loading.add_argument(
        "--loader",
        metavar="FILE.py:FUNCTION",
        help="time a few batches of the loader that this function returns, on this machine",
    )
    loading.add_argument(
        "--seconds-per-sample",
        type=seconds,
        metavar="S",
        help="the time in which one process loads a sample (default: 0)",
    )
    group.add_argument(
        "--loading",
        type=one_of(("sync", "async")),
        metavar="WHEN",
        help="sync or async: whether the host loads the next batch after the device has finished, or at the same time "
        "(default: as the loader does, or sync)",
    )
    group.add_argument(
        "--workers",
        type=whole_number(0),
        metavar="N",
        help="the number of processes that load (default: as many as the loader has, or none)",
    )


def host_of(arguments: Namespace) -> HostWork | None:
    """Return the host's work that the options describe, `None` without one; print what a timed loader takes."""
    own = {name: getattr(arguments, name) for name in ("workers", "loading") if getattr(arguments, name) is not None}
    if arguments.loader is None and arguments.seconds_per_sample is None:
        if own:
            raise Error(
                "--loading and --workers need to know how long a sample takes: give --seconds-per-sample S, or "
                "--loader FILE.py:FUNCTION to measure it."
            )
        return None
    if arguments.loader is not None:
        from ipu_model.explore.loader import time_loader
        from ipu_model.sources import is_function, made_by, said_if_slow

        source = arguments.loader
        if not is_function(source):
            raise Error(f"--loader takes a function that returns a loader, as program.py:function, not {source!r}.")
        loader = made_by(source)
        with said_if_slow(f"timing the loader of {source}"):
            work = replace(time_loader(loader), **own)
        print(
            f"loader: {work.seconds_per_sample * 1e3:.3g} ms a sample and worker, {work.loading.value}, "
            f"workers: {work.workers} ({work.source})"
        )
        return work
    from ipu_model.predict.host import HostWork

    return HostWork(arguments.seconds_per_sample, source="--seconds-per-sample", **own)


def check_page(arguments: Namespace, known: Path | None = None) -> None:
    """Refuse a page that cannot be written or opened, before anything takes time; one may exist already (`known`)."""
    if arguments.html is not None:
        check_writable(arguments.html)
    elif arguments.open and (known is None or not known.exists()):
        raise Error("There is no page to open: --html OUT writes one.")


def finish_page(arguments: Namespace, known: Path | None, make_page: Callable[[], str]) -> None:
    """Write and open the page as asked for, and say where it is; one may be there already (`known`)."""
    page: Path | None = arguments.html or known
    if page is None:
        return
    if page is arguments.html:
        write_text(page, make_page())
    elif not page.exists():
        print(f"page: there is none at {page}; --html OUT writes one")
        return
    print(f"page: {page}")
    if arguments.open:
        webbrowser.open(page.resolve().as_uri())


# --- the machines that programs can be modelled on, every number with its source


def print_machines(arguments: Namespace) -> None:
    from ipu_model.predict.hardware import known_hardware, system_named

    systems = [system_named(name) for name in arguments.names] or list(known_hardware().systems.values())
    systems = list(dict.fromkeys(systems))
    rows = [("machine", "chip", "IPUs", "tiles", "bytes a tile", "clock", "fp16 peak", "title")]
    for system in systems:
        chip = system.chip
        peak = chip.peak_flops(2, half_partials=True) * system.ipus
        rows.append((
            system.name, chip.name, f"{system.ipus}", f"{system.ipus * chip.tiles:,}", f"{chip.tile_bytes:,}",
            f"{chip.clock_hz / 1e9:g} GHz", f"{peak / 1e12:,.0f} TFLOP/s", system.title,
        ))  # fmt: skip
    for line, (*_, title) in zip(aligned([row[:-1] for row in rows], left=2, indent=0), rows):
        print(f"{line}  {title}")
    for what, names in (("chips", [system.chip.name for system in systems]), ("systems", [s.name for s in systems])):
        print(f"\nNumbers of the {what}\n")
        print("\n".join(sources(list(dict.fromkeys(names)))))


def sources(names: Sequence[str]) -> list[str]:
    """Return every number of the chips or systems `names`: once, with those that share it, its unit and its source."""
    from ipu_model.predict.hardware import provenance

    shared: dict[str, dict[Fact, list[str]]] = {}
    for name in names:
        for number, fact in provenance(name).items():
            shared.setdefault(number, {}).setdefault(fact, []).append(name)
    lines: list[str] = []
    for number, facts in shared.items():
        lines.append(number)
        for fact, owners in facts.items():
            value = f"{fact.value:,}" if isinstance(fact.value, int) else f"{fact.value:,.12g}"
            whose = f"{', '.join(owners)}: " if len(owners) < len(names) else ""
            words = f"{whose}{value} {fact.unit} ({fact.confidence}: {fact.source})"
            lines += textwrap.wrap(plain(words), _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


# --- published measurements


def run_validate(arguments: Namespace) -> None:
    if _VALIDATION.is_dir():
        sys.path.insert(0, str(_VALIDATION))
    try:
        command = import_module("published.command")
    except ModuleNotFoundError as missing:
        if missing.name != "published":
            raise
        raise Error(
            "The published measurements and their programs are not in the installed package: they are in the folder "
            "ipu_model/validation of the project's sources. Get the sources and call python ipu_model/validation in "
            "their folder, which compares this installation."
        ) from missing
    command.run(arguments)
