"""The options that the commands about programs share: the machine, the host's work, and the page."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.errors import Error
from ipu_model.report.text_files import write_text

if TYPE_CHECKING:
    from ipu_model.predict.host import HostWork

SOURCE = "SOURCE"
SOURCES = (
    "SOURCE is the folder of a report, a profile.json, or a function that returns a program, as program.py:function. "
)
SOURCE_HELP = "a report's folder, profile.json, or program.py:function"


def description_of(what: str) -> str:
    """Return the description of a command, which ends with what its sources can be."""
    from ipu_model.sources import RETURNS

    return f"{what} {SOURCES}{RETURNS}"


def add_modelling(parser: argparse.ArgumentParser) -> None:
    """Add the options that say on what a program is modelled."""
    group = parser.add_argument_group("model it again, with another machine or with the program's own loader")
    group.add_argument("--machine", metavar="NAME", help="for instance POD16 or Bow; python -m ipu_model machines")
    loading = group.add_mutually_exclusive_group()
    loading.add_argument(
        "--loader", metavar="FILE.py:FUNCTION",
        help="time a few batches of the loader that this function returns, on this machine",
    )  # fmt: skip
    loading.add_argument(
        "--seconds-per-sample", type=_seconds, metavar="S",
        help="the time in which one process loads a sample (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--loading", choices=("sync", "async"), default="sync",
        help="whether the next batch is loaded while the device works (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--workers", type=_count, default=0, metavar="N", help="loader processes (default: none)")


def host_of(arguments: argparse.Namespace) -> HostWork | None:
    """Return the host's work that the options describe, `None` without one.

    Raises:
        Error: loading or workers without a time, or a loader that cannot be timed.
    """
    if arguments.loader is not None:
        return _timed(arguments.loader)
    if arguments.seconds_per_sample is None:
        if arguments.workers or arguments.loading != "sync":
            raise Error("--loading and --workers need --seconds-per-sample, the time in which a sample is loaded.")
        return None
    from ipu_model.predict.host import HostWork, Loading

    return HostWork(
        seconds_per_sample=arguments.seconds_per_sample,
        loading=Loading(arguments.loading),
        workers=arguments.workers,
        source="--seconds-per-sample",
    )


def _timed(source: str) -> HostWork:
    """Time the loader that a function returns, and print the result."""
    from ipu_model.explore.loader import time_loader
    from ipu_model.sources import is_function, made_by

    if not is_function(source):
        raise Error(f"--loader takes a function that returns a loader, as program.py:function, not {source!r}.")
    work = time_loader(made_by(source))
    print(f"loader: {work.seconds_per_sample * 1e3:.3g} ms a sample and worker, {work.loading.value}, {work.source}")
    return work


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the options of the page."""
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
    parser.add_argument("--open", choices=("yes", "no"), default="no", help="show the page in a browser (default: no)")


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
        print(f"page: none at {known}; --html OUT writes one")
    if arguments.open == "yes":
        if page is None:
            raise Error("There is no page to open: --html OUT writes one.")
        webbrowser.open(page.resolve().as_uri())


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time: a number of seconds from 0 on is")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text} is no count: a whole number from 0 on is")
    return count
