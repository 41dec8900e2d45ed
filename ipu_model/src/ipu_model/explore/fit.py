"""`make_it_fit`: a search over combinations of settings for the fastest and the cheapest program that fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ipu_model.explore.fit_result import FitResult, Limits
from ipu_model.explore.kept import kept
from ipu_model.explore.options import checked_count
from ipu_model.explore.profiling import check_host
from ipu_model.explore.program_source import Source, host_work_of, source_of
from ipu_model.explore.search import Search
from ipu_model.explore.settings import Programs
from ipu_model.predict.hardware import System, is_chip, system_with_room
from ipu_model.predict.host import HostWork


def make_it_fit(
    thing: Any,
    inputs: Any = None,
    options: Any = None,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    micro_batch: bool = False,
    host: HostWork | None = None,
    machine: str | System | None = None,
    ipus: int | None = None,
    keep: str | Iterable[str] = (),
    progress: bool | None = None,
) -> FitResult:
    """Search combinations of settings for the fastest program that fits, and for the cheapest.

    `thing` is a compiled executor (also one whose program did not fit), a `Profile`, a `Program`, or a plain module
    with the arguments of `ipu_model.profile_module`. All programs have the same global batch. `ipus` is the most IPUs
    to use (default: those of the machine, or as many as the first program that fits needs). `keep` names what must stay
    as it is (see `explore.kept.KEEP`). `progress` shows a bar (default: in a terminal and in a notebook).

    Raises:
        Error: an unknown machine or name in `keep`, fewer than 1 IPU, or a thing that is no program.
    """
    check_host(host)
    stays = kept(keep)
    most = None if ipus is None else checked_count("ipus", ipus)
    source = source_of(thing, inputs, options, optimizer=optimizer, training=training, micro_batch=micro_batch)
    if machine is not None:
        source = _on_machine(source, machine)
    names_chip = isinstance(machine, str) and is_chip(machine)
    limits = Limits(most, stays, machine is not None, machine is not None and not names_chip)
    return search(source, host_work_of(thing, host), limits, progress=progress)


def _on_machine(source: Source, machine: str | System) -> Source:
    program = source.program
    system = system_with_room(machine, 1, "the argument machine")
    device = replace(program.settings.device, chip=system.chip)
    return replace(source, program=replace(program, system=system, settings=replace(program.settings, device=device)))


def search(source: Source, host: HostWork, limits: Limits, *, progress: bool | None = None) -> FitResult:
    """Return what fits within the limits, or the nearest if nothing does."""
    with _bar(progress) as tick:
        found = Search(Programs(source), host, limits, tick)
        found.run()
        return found.result()


@contextmanager
def _bar(wanted: bool | None) -> Iterator[Callable[[int], object]]:
    """Show how many programs have been modelled: in a terminal or a notebook, unless told otherwise."""
    from tqdm.auto import tqdm

    is_shown = sys.stderr.isatty() or _is_in_notebook() if wanted is None else wanted
    with tqdm(desc="programs modelled", unit="", disable=not is_shown, leave=False) as bar:
        yield bar.update


def _is_in_notebook() -> bool:
    """Whether the program runs in a kernel with a front end, which is where IPython has been imported already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
