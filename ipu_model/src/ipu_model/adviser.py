"""The next changes worth trying, each with its modelled gain and cost: found by costing every one of them."""

from __future__ import annotations

from ipu_model.advice import Advice
from ipu_model.changes import Change, changes
from ipu_model.errors import Error
from ipu_model.host_work import HostWork
from ipu_model.profiling.build import profile_program
from ipu_model.profiling.data import Profile
from ipu_model.program import Program

LEAST_GAIN = 1.02
"""Changes that gain less than this factor in samples a second are not worth a line, unless they make it fit."""
MOST_ITEMS = 8


def advise(program: Program, host: HostWork | None = None, profile: Profile | None = None) -> tuple[Advice, ...]:
    """Return the changes that make a program fit or faster, the most useful first.

    `profile` is the program's own profile if there is one already. For a program that fits, changes that
    no longer would are left out; for one that does not, those that save memory come first.
    """
    host = host or HostWork()
    before = profile or profile_program(program, host)
    found = [item for change in changes(program, host) if (item := _tried(change, before)) is not None]
    useful = [item for item in found if _is_useful(item, before)]
    useful.sort(key=lambda item: (not item.fits, -item.samples_per_second_factor))
    return tuple(_best_of_each_kind(useful)[:MOST_ITEMS])


def _tried(change: Change, before: Profile) -> Advice | None:
    """Return what a change does; `None` for one that the model refuses."""
    try:
        after = profile_program(change.program, change.host)
    except Error:
        return None
    return Advice(
        change=change.change,
        how=change.how,
        samples_per_second_factor=after.samples_per_second / before.samples_per_second,
        max_tile_bytes_change=after.memory.max_tile_bytes - before.memory.max_tile_bytes,
        fits=after.fits,
        explanation=change.explanation,
    )


def _is_useful(item: Advice, before: Profile) -> bool:
    if before.fits:
        return item.fits and item.samples_per_second_factor >= LEAST_GAIN
    return item.fits or item.max_tile_bytes_change < -0.05 * before.memory.max_tile_bytes


def _best_of_each_kind(items: list[Advice]) -> list[Advice]:
    """Keep the first of the items that change the same thing ("device iterations: ..." by two factors, say)."""
    kept: dict[str, Advice] = {}
    for item in items:
        kept.setdefault(item.change.split(":")[0], item)
    return list(kept.values())
