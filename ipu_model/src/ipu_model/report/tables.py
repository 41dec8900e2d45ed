"""The tables of a page that no script draws: times and cycles, memory, options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ipu_model.predict.band import known_errors
from ipu_model.predict.profile import Profile
from ipu_model.report.breakdown import categories, compute_share, device_rows, host_rows, kinds_of, phases
from ipu_model.report.quantities import duration, percent, size, whole


class Table(NamedTuple):
    """A table with a caption: first cells of rows are headings, columns after the first `words` stand to the right."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    words: int = 99


def host(profile: Profile) -> Table:
    rows = [
        (row.name, span.label or span.kind, duration(span.start), duration(span.end), duration(span.seconds))
        for row in host_rows(profile.timeline)
        for span in row.spans
    ]
    call = profile.call_seconds
    rows.append(("one call, end to end", "", duration(0.0), duration(call), duration(call)))
    return Table("Host and device in one call, modelled", ("who", "what", "from", "to", "time"), rows, 2)


def shares(profile: Profile) -> Table:
    rows = [
        (name, duration(share * profile.device_seconds_per_call), percent(share))
        for name, share in sorted(profile.shares.items(), key=lambda item: -item[1])
        if share
    ]
    return Table("Parts of the device's time, modelled", ("part", "time", "share"), rows, 1)


def kinds(profile: Profile) -> Table:
    rows = device_rows(profile.timeline)
    order = kinds_of(rows)
    body = [
        (row.name, *(duration(sum(s.seconds for s in row.spans if s.kind == kind)) for kind in order)) for row in rows
    ]
    return Table("Time by kind of work in one call, modelled", ("resource", *order), body, 1)


def cycles(profile: Profile) -> Table:
    rows = [
        *((phase, *map(whole, cycles)) for phase, cycles in phases(profile).items()),
        ("total", *(whole(ipu.total) for ipu in profile.cycles)),
        ("share of OnTileExecute", *(percent(compute_share(ipu)) for ipu in profile.cycles)),
    ]
    head = ("phase", *(f"IPU {ipu}" for ipu in range(len(profile.cycles))))
    return Table("Cycles of one call by phase, modelled", head, rows, 1)


def tiles(profile: Profile) -> Table:
    limit = profile.memory.tile_bytes
    rows = []
    for memory in profile.memory:
        row = (
            f"IPU {memory.ipu}",
            whole(memory.max_tile_bytes),
            percent(memory.max_tile_bytes / limit),
            str(memory.fullest_tile),
            whole(memory.total_bytes / max(1, len(memory.tiles))),
            whole(min(memory.tiles, default=0.0)),
            whole(sum(count > limit for count in memory.tiles)),
            size(memory.total_bytes),
        )
        rows.append(row)
    head = ("fullest tile", "of the limit", "which tile", "mean tile", "emptiest tile", "tiles above the limit")
    return Table(f"Bytes of the tiles, modelled; a tile holds {whole(limit)}", ("IPU", *head, "all tiles"), rows, 1)


def memory_categories(profile: Profile) -> Table:
    memory = profile.memory
    rows = [
        (
            category.name,
            "always" if category.always_live else "at the peak",
            *map(whole, category.bytes_on_fullest_tile),
            size(category.total_bytes),
        )
        for category in categories(profile)
    ]
    fullest = [*(whole(ipu.max_tile_bytes) for ipu in memory), size(sum(ipu.total_bytes for ipu in memory))]
    rows.append(("fullest tile", "", *fullest))
    head = ("category", "live", *(f"IPU {ipu.ipu}" for ipu in memory), "all tiles")
    return Table("Bytes of the fullest tile by category, modelled", head, rows, 2)


def families() -> Table:
    rows = [
        (str(family), whole(band.rows), percent(band.largest_error), f"{band.low:g} to {band.high:g}")
        for family, band in known_errors().families.items()
    ]
    head = ("programs", "published rows", "largest error", "hardware takes, times the modelled time")
    return Table("What published measurements leave open, by family", head, rows, 1)


def options(profile: Profile) -> Sequence[Table]:
    machine = profile.machine
    numbers = (
        ("name", f"{machine.name}: {machine.title}"),
        ("IPUs", f"{machine.ipus} x {machine.chip}"),
        ("tiles of an IPU", whole(machine.tiles)),
        ("bytes of a tile", whole(machine.tile_bytes)),
        ("clock", f"{machine.clock_hz / 1e9:g} GHz"),
    )
    found = [Table("On which machine", ("number", "value"), numbers)]
    if profile.options:
        settings = [(name, str(value)) for name, value in profile.options.items()]
        found.insert(0, Table("What was modelled", ("option", "value"), settings))
    return found
