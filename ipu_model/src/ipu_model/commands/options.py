"""The options that the commands about programs share (the machine, the host's work, the page), and their values."""

from __future__ import annotations

import difflib
import math
import webbrowser
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.errors import Error
from ipu_model.report.text_files import check_writable, write_text

if TYPE_CHECKING:
    from ipu_model.predict.host import HostWork


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole_number(least: int) -> Callable[[str], int]:
    """Return the type of options that take a whole number from `least` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value >= least:
            return value
        number = _number(text)
        nearest = max(least, 4 if number is None else round(number))
        raise ArgumentTypeError(f"it takes a whole number from {least} on, such as {nearest}, not {text!r}")

    return read


def seconds(text: str) -> float:
    """Return a time in seconds: a finite number from 0 on."""
    value = _number(text)
    if value is not None and value >= 0:
        return value
    nearest = "0.001 for a millisecond" if value is None else "0"
    raise ArgumentTypeError(f"it takes a number of seconds from 0 on, such as {nearest}, not {text!r}")


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return the type of options that take one of some names."""
    known = list(names)

    def read(text: str) -> str:
        if text in known:
            return text
        near = difflib.get_close_matches(text, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ArgumentTypeError(f"it takes one of {', '.join(known)}, not {text!r}.{hint}")

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


def is_modelled_again(arguments: Namespace) -> bool:
    """Whether the options ask for another machine or another host's work than a report was written with."""
    return any(value is not None for value in (arguments.machine, arguments.loader, arguments.seconds_per_sample))


def host_of(arguments: Namespace) -> HostWork | None:
    """Return the host's work that the options describe, `None` without one; print what a timed loader takes."""
    if arguments.loader is None and arguments.seconds_per_sample is None:
        if arguments.workers is not None or arguments.loading is not None:
            raise Error(
                "--loading and --workers need to know how long a sample takes: give --seconds-per-sample S, or "
                "--loader FILE.py:FUNCTION to measure it."
            )
        return None
    from ipu_model.predict.host import HostWork, Loading

    if arguments.loader is not None:
        from ipu_model.explore.loader import time_loader
        from ipu_model.sources import is_function, made_by, said_if_slow

        source = arguments.loader
        if not is_function(source):
            raise Error(f"--loader takes a function that returns a loader, as program.py:function, not {source!r}.")
        loader = made_by(source)
        with said_if_slow(f"timing the loader of {source}"):
            work = time_loader(loader)
    else:
        work = HostWork(arguments.seconds_per_sample, source="--seconds-per-sample")
    if arguments.workers is not None:
        work = replace(work, workers=arguments.workers)
    if arguments.loading is not None:
        work = replace(work, loading=Loading(arguments.loading))
    if arguments.loader is not None:
        print(
            f"loader: {work.seconds_per_sample * 1e3:.3g} ms a sample and worker, {work.loading.value}, "
            f"workers: {work.workers} ({work.source})"
        )
    return work


def add_page(parser: ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
    parser.add_argument("--open", action="store_true", help="show the page in your browser")


def check_page(arguments: Namespace, known: Path | None = None) -> None:
    """Refuse a page that cannot be written or opened, before anything takes time; one may exist already (`known`)."""
    if arguments.html is not None:
        check_writable(arguments.html)
    elif arguments.open and (known is None or not known.exists()):
        raise Error("There is no page to open: --html OUT writes one.")


def finish_page(arguments: Namespace, known: Path | None, make_page: Callable[[], str]) -> None:
    """Write and open the page as asked for, and say where it is; one may be there already (`known`)."""
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
