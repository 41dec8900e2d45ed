"""The options that the commands about programs share: the machine, the host's work, and the page."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.commands.option_values import one_of, seconds, whole_number
from ipu_model.errors import Error
from ipu_model.report.text_files import check_writable, write_text

if TYPE_CHECKING:
    from ipu_model.predict.host import HostWork

SOURCES = (
    "SOURCE is the folder of a report, its profile.json or program.ipu, or a function that returns a program, as "
    "program.py:function. "
)
SOURCE_HELP = "a report's folder, profile.json, program.ipu, or program.py:function"
_LOADING = ("sync", "async")


def description_of(what: str) -> str:
    """Return the description of a command, which ends with what its sources can be."""
    from ipu_model.sources import RETURNS

    return f"{what} {SOURCES}{RETURNS}"


def add_modelling(parser: argparse.ArgumentParser) -> None:
    """Add the options for the machine and the loader that a program is modelled with."""
    group = parser.add_argument_group("model the program again, on another machine or with its own loader")
    group.add_argument(
        "--machine", metavar="NAME", help="for example POD16 or Bow; python -m ipu_model machines lists all machines"
    )
    loading = group.add_mutually_exclusive_group()
    loading.add_argument(
        "--loader", metavar="FILE.py:FUNCTION",
        help="time a few batches of the loader that this function returns, on this machine",
    )  # fmt: skip
    loading.add_argument(
        "--seconds-per-sample", type=seconds, metavar="S",
        help="the time in which one process loads a sample (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--loading", type=one_of(_LOADING), metavar="WHEN",
        help="sync or async: whether the host loads the next batch after the device has finished, or at the same time "
        "(default: as the loader does, or sync)",
    )  # fmt: skip
    group.add_argument(
        "--workers", type=whole_number(0), metavar="N",
        help="the number of processes that load (default: as many as the loader has, or none)",
    )  # fmt: skip


def host_of(arguments: argparse.Namespace) -> HostWork | None:
    """Return the host's work that the options describe, `None` without one; print what a timed loader takes.

    Raises:
        Error: loading or workers without a time, or a loader that cannot be timed.
    """
    if arguments.loader is not None:
        work = _as_asked(_timed(arguments.loader), arguments)
        print(
            f"loader: {work.seconds_per_sample * 1e3:.3g} ms a sample and worker, {work.loading.value}, "
            f"workers: {work.workers} ({work.source})"
        )
        return work
    if arguments.seconds_per_sample is None:
        if arguments.workers is not None or arguments.loading is not None:
            raise Error(
                "--loading and --workers need to know how long a sample takes: give --seconds-per-sample S, or "
                "--loader FILE.py:FUNCTION to measure it."
            )
        return None
    from ipu_model.predict.host import HostWork

    return _as_asked(HostWork(arguments.seconds_per_sample, source="--seconds-per-sample"), arguments)


def _timed(source: str) -> HostWork:
    """Time the loader that a function returns."""
    from ipu_model.commands.slow_work import said_if_slow
    from ipu_model.explore.loader import time_loader
    from ipu_model.named_functions import is_function, made_by

    if not is_function(source):
        raise Error(f"--loader takes a function that returns a loader, as program.py:function, not {source!r}.")
    loader = made_by(source)
    with said_if_slow(f"timing the loader of {source}"):
        return time_loader(loader)


def _as_asked(work: HostWork, arguments: argparse.Namespace) -> HostWork:
    """Return the work of a loader with the number of workers and the way of loading that the options ask for."""
    from ipu_model.predict.host import Loading

    if arguments.workers is not None:
        work = replace(work, workers=arguments.workers)
    return work if arguments.loading is None else replace(work, loading=Loading(arguments.loading))


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the options of the page."""
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
    parser.add_argument("--open", action="store_true", help="show the page in your browser")


def check_page(arguments: argparse.Namespace, known: Path | None = None) -> None:
    """Refuse a page that cannot be written or opened, before anything else takes time.

    `known` is where a page may be already.

    Raises:
        Error: names what is wrong with it.
    """
    page: Path | None = arguments.html
    if page is not None:
        check_writable(page)
    elif arguments.open and (known is None or not known.exists()):
        raise Error("There is no page to open: --html OUT writes one.")


def finish_page(arguments: argparse.Namespace, known: Path | None, make_page: Callable[[], str]) -> None:
    """Write the page if one is asked for, say where it is, and open it if that is asked for.

    `known` is where a page may be already.
    """
    page: Path | None = arguments.html
    if page is not None:
        write_text(page, make_page())
    elif known is not None and known.exists():
        page = known
    if page is not None:
        print(f"page: {page}")
    elif known is not None:
        print(f"page: there is none at {known}; --html OUT writes one")
    if arguments.open and page is not None:
        webbrowser.open(page.resolve().as_uri())
