"""`make_it_fit`: a search over combinations of settings for the fastest and the cheapest program that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ipu_model.explore.candidates import Limits
from ipu_model.explore.fit_result import FitResult
from ipu_model.explore.kept import kept
from ipu_model.explore.options import checked_count, on_machine
from ipu_model.explore.profiling import check_host
from ipu_model.explore.program_source import Source, host_work_of, source_of
from ipu_model.explore.search import Search
from ipu_model.explore.search_bar import search_bar
from ipu_model.explore.search_result import Findings
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
    """Search combinations of settings for the fastest and for the cheapest program that fits.

    `thing` is a compiled executor (also one whose program did not fit), a `Profile`, a `Program`, or a plain module
    with the arguments of `ipu_model.profile_module`. The search never changes the global batch. `ipus` is the most
    IPUs to use, in all processes together (default: those of the machine, or as many as the first program that fits
    needs). `keep` names what must stay as it is (see `explore.kept.KEEP`). `host` defaults to the work that a `Profile`
    was modelled with. `progress` shows a bar (default: in a terminal and in a notebook).

    Raises:
        Error: an unknown machine or name in `keep`, fewer than 1 IPU, or a thing that is no program.
    """
    check_host(host)
    stays = kept(keep)
    most = None if ipus is None else checked_count("ipus", ipus)
    source = source_of(thing, inputs, options, optimizer=optimizer, training=training, micro_batch=micro_batch)
    if machine is not None:
        system = system_with_room(machine, 1, "the argument machine")
        source = replace(source, program=on_machine(source.program, system))
    names_chip = isinstance(machine, str) and is_chip(machine)
    named = "" if machine is None or names_chip else source.program.system.name
    limits = Limits(most, stays, is_chip_given=machine is not None, machine=named)
    return search(source, host_work_of(thing, host), limits, progress=progress)


def search(source: Source, host: HostWork, limits: Limits, *, progress: bool | None = None) -> FitResult:
    """Return what fits within the limits, or the nearest if nothing does."""
    with search_bar(progress) as bar:
        found = Search(Programs(source), host, limits, bar)
        found.run()
        return Findings(found).result()
